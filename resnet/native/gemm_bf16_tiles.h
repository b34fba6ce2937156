// The building blocks of matrix products in bfloat16; needs AVX512_BF16.
//
// They use vdpbf16ps, which adds two products to each of 16 float32 sums. Its operands are
// pairs of elements that are adjacent along the summed dimension. A tile of sums (6 rows
// by 4 vectors of 16 columns) stays in registers. For each pair, 4 vectors and one
// broadcast per row are loaded: 10 loads for 24 vdpbf16ps instructions.

#ifndef RESNET_NATIVE_GEMM_BF16_TILES_H_
#define RESNET_NATIVE_GEMM_BF16_TILES_H_

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "resnet/native/bf16.h"
#include "resnet/native/rounding.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace bf16 {

// A register holds kLanes float32 sums or bfloat16 pairs.
constexpr int kMaxVectors = 4;  // Per tile; most numbers of channels are multiples of 64.
constexpr int kMaxRows = 6;     // Per tile: 24 registers for sums, 8 for operands.
constexpr int64_t kPanel = int64_t{kMaxVectors} * kLanes;
constexpr int64_t kPairBytes = 4;
constexpr int64_t kVectorBytes = 64;

inline __mmask16 Mask16(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}

inline __mmask32 Mask32(int64_t count) {
  return count >= 32 ? 0xffffffff : count <= 0 ? 0 : (1u << count) - 1;
}

// Memory that will be needed soon, prefetched step by step while sums are computed.
struct Prefetch {
  const char* next;  // Always a valid address, as prefetching others is slow.
  int64_t step;      // Bytes per pair.
};

// Returns the number of bytes to prefetch for some rows: 0 if most of their span is gaps
// between the rows.
inline int64_t FetchBytes(int64_t num_rows, int64_t num_columns, int64_t ld) {
  return ld > 2 * num_columns ? 0 : num_rows * ld * int64_t{sizeof(Bf16)};
}

// Returns the step that prefetches the given bytes within num_pairs iterations.
inline int64_t FetchStep(int64_t bytes, int64_t num_pairs) {
  return std::min(kVectorBytes, CeilDivide(bytes, std::max<int64_t>(1, num_pairs)));
}

inline __m512bh BroadcastPair(const char* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return (__m512bh)_mm512_set1_epi32(bits);
}

// sums[r][v] += row r of a times column group v of b. Pair p of row r of a is at
// a + r * row_step + p * pair_step, pair p of b's columns at b + p * kVectors vectors.
template <int kRows, int kVectors>
inline __attribute__((always_inline)) void Accumulate(
    const char* a, int64_t row_step, int64_t pair_step, const char* b, int64_t num_pairs,
    Prefetch prefetch, __m512 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 2
  for (int64_t p = 0; p < num_pairs; ++p) {
    __m512bh right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      right[v] = (__m512bh)_mm512_load_si512(b + v * kVectorBytes);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh left = BroadcastPair(a + r * row_step);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left, right[v]);
      }
    }
    _mm_prefetch(prefetch.next, _MM_HINT_T0);
    prefetch.next += prefetch.step;
    a += pair_step;
    b += kVectors * kVectorBytes;
  }
}

// Returns the permutation that interleaves the two halves of a register into 16 pairs.
inline __m512i InterleaveHalves() {
  alignas(64) static constexpr uint16_t kIndex[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_load_si512(kIndex);
}

// A table of kernel<rows, vectors> for all tile sizes.
#define RESNET_TILES_OF_ROWS(kernel, rows) \
  { kernel<rows, 1>, kernel<rows, 2>, kernel<rows, 3>, kernel<rows, 4> }
#define RESNET_BF16_TILES(kernel)                                                      \
  {                                                                                    \
    RESNET_TILES_OF_ROWS(kernel, 1), RESNET_TILES_OF_ROWS(kernel, 2),                  \
        RESNET_TILES_OF_ROWS(kernel, 3), RESNET_TILES_OF_ROWS(kernel, 4),              \
        RESNET_TILES_OF_ROWS(kernel, 5), RESNET_TILES_OF_ROWS(kernel, 6)               \
  }

}  // namespace bf16
}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_GEMM_BF16_TILES_H_
