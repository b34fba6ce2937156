// What the matrix products in bfloat16 are made of; needs AVX512_BF16.
//
// Everything is built on vdpbf16ps, which adds two products to each of 16 float32 sums:
// its operands are pairs of neighbours along the summed dimension. A tile of sums (6 rows
// times 4 vectors of 16 columns) stays in registers while 4 vectors of pairs and one
// broadcast pair a row are loaded: 10 loads for 24 instructions.

#ifndef RESNET_NATIVE_GEMM_BF16_TILES_H_
#define RESNET_NATIVE_GEMM_BF16_TILES_H_

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "resnet/native/convolution.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16")
// GCC 12 takes undefined registers inside of intrinsics for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace resnet {
namespace bf16 {

constexpr int64_t kLanes = 16;  // Float32 sums, or bfloat16 pairs, of a register.
constexpr int kMaxVectors = 4;  // Of a tile. 64 divides most numbers of channels.
constexpr int kMaxRows = 6;     // Of a tile: 24 registers of sums, 8 for operands.
constexpr int64_t kPanel = kMaxVectors * kLanes;
constexpr int64_t kPairBytes = 4;
constexpr int64_t kVectorBytes = 64;

inline int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline int64_t RoundUp(int64_t x, int64_t y) { return CeilDiv(x, y) * y; }

inline __mmask16 Mask16(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}

inline __mmask32 Mask32(int64_t count) {
  return count >= 32 ? 0xffffffff : count <= 0 ? 0 : (1u << count) - 1;
}

// Memory that will be needed soon, fetched bit by bit while sums are computed.
struct Prefetch {
  const char* next;  // Valid even if nothing is to be fetched: other addresses cost time.
  int64_t step;      // Bytes a pair.
};

// Returns the bytes of rows that are worth fetching: none if most lies between the rows.
inline int64_t FetchBytes(int64_t num_rows, int64_t num_columns, int64_t ld) {
  return ld > 2 * num_columns ? 0 : num_rows * ld * int64_t{sizeof(Bf16)};
}

// Returns the step that fetches so many bytes during num_pairs iterations.
inline int64_t FetchStep(int64_t bytes, int64_t num_pairs) {
  return std::min(kVectorBytes, CeilDiv(bytes, std::max<int64_t>(1, num_pairs)));
}

inline __m512bh BroadcastPair(const char* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return (__m512bh)_mm512_set1_epi32(bits);
}

// sums[r][v] += a's row r times b's column group v. The pair p of a's row r is at
// a + r * row_step + p * pair_step, that of b's columns at b + p * kVectors vectors.
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

// Returns the order that makes 16 pairs of the two halves of a register.
inline __m512i InterleaveHalves() {
  alignas(64) static constexpr uint16_t kIndex[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_load_si512(kIndex);
}

// A table of kernel<rows, vectors> for each size of a tile.
#define RESNET_TILES_OF_ROWS(kernel, rows) \
  { kernel<rows, 1>, kernel<rows, 2>, kernel<rows, 3>, kernel<rows, 4> }
#define RESNET_BF16_TILES(kernel)                                                      \
  {                                                                                    \
    RESNET_TILES_OF_ROWS(kernel, 1), RESNET_TILES_OF_ROWS(kernel, 2),                  \
        RESNET_TILES_OF_ROWS(kernel, 3), RESNET_TILES_OF_ROWS(kernel, 4),              \
        RESNET_TILES_OF_ROWS(kernel, 5), RESNET_TILES_OF_ROWS(kernel, 6)               \
  }

}  // namespace bf16
}  // namespace resnet

#pragma GCC diagnostic pop
#pragma GCC pop_options

#endif  // RESNET_NATIVE_GEMM_BF16_TILES_H_
