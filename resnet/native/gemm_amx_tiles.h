// The building blocks of matrix products with AMX; needs AMX-TILE, AMX-BF16 and AVX-512.
//
// A tile is a register of 16 rows of 64 bytes. tdpbf16ps adds the product of two tiles to a
// third one, of 16 by 16 float32 sums: it sums 32 bfloat16 elements, pairs of which are
// adjacent in both operands. A block of 2 by 2 tiles of sums needs four loads for four
// products, as many as the L1 cache, and mostly the L2 cache, can keep up with.

#ifndef RESNET_NATIVE_GEMM_AMX_TILES_H_
#define RESNET_NATIVE_GEMM_AMX_TILES_H_

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "resnet/native/bf16.h"
#include "resnet/native/convolution.h"
#include "resnet/native/rounding.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace amx {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;  // Of a row.
constexpr int64_t kDepth = 32;      // Elements that a product sums.
constexpr int64_t kBlock = 32;      // Rows and columns of a block of sums.
constexpr int64_t kBlockSize = kBlock * kBlock;
constexpr int64_t kSumsStride = kBlock * sizeof(float);

// The configuration of the eight tiles, in the layout of ldtilecfg.
struct TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// The tiles of this thread, while it exists.
class Tiles {
 public:
  Tiles() {
    alignas(64) static constexpr TileConfiguration kConfiguration = {
        1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&kConfiguration);
  }
  // Else the kernel would save them at each switch to another thread.
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
};

// The intrinsics for tiles don't tell the compiler which memory they read.
inline void FinishStores() { asm volatile("" ::: "memory"); }

inline __mmask16 Mask16(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}
inline __mmask32 Mask32(int64_t count) {
  return count >= 32 ? 0xffffffff : count <= 0 ? 0 : (1u << count) - 1;
}

// Memory that will be needed next. Parts of it are fetched into the L2 cache while tiles are
// multiplied.
struct Fetch {
  const char* next;
  const char* end;
  int64_t step;  // Bytes per product of blocks, a multiple of a cache line.
};

// The left operand of a product. Row i of a tap is at data + i * pitch + its offset; the
// rows of all taps, `depth` elements each, are summed one after the other.
struct Left {
  const Bf16* data;
  int64_t pitch;
  const int64_t* offsets;
  int64_t taps, depth;  // The depth is a multiple of kDepth.
};

// Finishes blocks of sums: rounds them after the epilogue and stores each row i at
// y + places[i], unless this is below 0. It does so some rows at a time, while the next
// block is computed, since vectors and tiles are computed by different units.
class Finisher {
 public:
  // A place is a multiple of n; `sums` is memory for two blocks.
  Finisher(const Epilogue<Bf16>& epilogue, Bf16* y, int64_t n, float* sums)
      : epilogue_(epilogue),
        y_(y),
        has_lines_(n % kBlock == 0 && reinterpret_cast<uintptr_t>(y) % kTileBytes == 0),
        is_plain_(epilogue.bias == nullptr && epilogue.residual == nullptr && !epilogue.relu),
        next_(sums),
        other_(sums + kBlockSize) {}

  // Where to write the sums of the next block.
  float* next() const { return next_; }

  // Takes the block that has been written, of which some columns, from the given one on,
  // are valid.
  void Take(const int64_t* places, int64_t column, int64_t columns) {
    Some(kBlock);
    std::swap(next_, other_);
    row_ = 0;
    places_ = places;
    column_ = column;
    is_line_ = has_lines_ && columns >= kBlock;
    low_ = Mask16(columns);
    high_ = Mask16(columns - 16);
    if (epilogue_.bias != nullptr) {
      bias_[0] = _mm512_maskz_loadu_ps(low_, epilogue_.bias + column);
      bias_[1] = _mm512_maskz_loadu_ps(high_, epilogue_.bias + column + 16);
    }
  }

  // Finishes up to `rows` rows.
  void Some(int64_t rows) {
    const int64_t end = std::min(kBlock, row_ + rows);
    for (int64_t row = row_; row < end; ++row) {
      if (places_[row] >= 0) FinishRow(other_ + row * kBlock, places_[row] + column_);
    }
    row_ = end;
  }

 private:
  void FinishRow(const float* sums, int64_t place) const {
    __m512 first = _mm512_load_ps(sums), second = _mm512_load_ps(sums + 16);
    if (!is_plain_) Apply(place, first, second);
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    // A whole line is written around the caches: its memory needn't be fetched first.
    if (is_line_) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(y_ + place), rounded);
    } else {
      _mm512_mask_storeu_epi16(y_ + place, _mm512_kunpackw(high_, low_), rounded);
    }
  }

  void Apply(int64_t place, __m512& first, __m512& second) const {
    if (epilogue_.bias != nullptr) {
      first = _mm512_add_ps(first, bias_[0]);
      second = _mm512_add_ps(second, bias_[1]);
    }
    if (epilogue_.residual != nullptr) {
      const Bf16* residual = epilogue_.residual + place;
      first = _mm512_add_ps(first, Load(residual, low_));
      second = _mm512_add_ps(second, Load(residual + 16, high_));
    }
    if (epilogue_.relu) {  // This order of operands keeps NaN.
      first = _mm512_max_ps(_mm512_setzero_ps(), first);
      second = _mm512_max_ps(_mm512_setzero_ps(), second);
    }
  }

  const Epilogue<Bf16> epilogue_;
  Bf16* const y_;
  const bool has_lines_, is_plain_;
  bool is_line_ = false;
  float* next_;
  float* other_;
  const int64_t* places_ = nullptr;
  int64_t row_ = kBlock, column_ = 0;
  __mmask16 low_ = 0, high_ = 0;
  __m512 bias_[2];
};

// After more than 128 loads of tiles without a store, the next store costs some 800 cycles,
// as measured on the only type of CPU at hand. So an operand is stored every 16 steps.
constexpr int64_t kStepsPerStore = 16;

// The product of two rows of tiles, 4 and 5, and two columns of tiles, 6 and 7.
#define RESNET_MULTIPLY_TILES(upper, lower, left_stride, right, right_stride) \
  _tile_loadd(4, upper, left_stride);                                         \
  _tile_loadd(6, right, right_stride);                                        \
  _tile_dpbf16ps(0, 4, 6);                                                    \
  _tile_loadd(7, (right) + kTileBytes, right_stride);                         \
  _tile_dpbf16ps(1, 4, 7);                                                    \
  _tile_loadd(5, lower, left_stride);                                         \
  _tile_dpbf16ps(2, 5, 6);                                                    \
  _tile_dpbf16ps(3, 5, 7)

// Writes the rows of the left operand * a packed panel, [depth / 2, kBlock, 2], to the
// finisher's next block. Meanwhile it finishes the block before it.
inline void MultiplyBlock(const Left& left, const char* panel, Fetch& fetch,
                          Finisher& finisher) {
  constexpr int64_t kStride = kBlock * 2 * sizeof(Bf16);
  const int64_t row_bytes = left.pitch * sizeof(Bf16);
  const int64_t rows = CeilDivide(kBlock * kDepth, left.taps * left.depth);
  float* const sums = finisher.next();
  const char* next = fetch.next;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  int64_t step = 0;
  for (int64_t tap = 0; tap < left.taps; ++tap) {
    const Bf16* upper = left.data + left.offsets[tap];
    const Bf16* lower = upper + kTileRows * left.pitch;
    for (int64_t d = 0; d < left.depth; d += kDepth, panel += kDepth / 2 * kStride) {
      RESNET_MULTIPLY_TILES(upper + d, lower + d, row_bytes, panel, kStride);
      const char* const last = std::min(fetch.end, next + fetch.step);
      for (; next < last; next += kTileBytes) _mm_prefetch(next, _MM_HINT_T1);
      finisher.Some(rows);
      if (++step % kStepsPerStore == 0) _tile_stored(4, sums, kTileBytes);
    }
  }
  fetch.next = next;
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileRows, kSumsStride);
  _tile_stored(2, sums + kTileRows * kBlock, kSumsStride);
  _tile_stored(3, sums + kTileRows * kBlock + kTileRows, kSumsStride);
}

// Adds to, or writes, a block of sums whose rows are `stride` floats apart: the product of
// blocks of the transposed left operand, [steps, kBlock, kDepth], and of packed pairs of rows
// of the right one, [steps, kDepth / 2, kBlock, 2].
inline void AddBlock(const char* left, const char* right, int64_t steps, bool is_first,
                     float* sums, int64_t stride) {
  constexpr int64_t kStride = kBlock * 2 * sizeof(Bf16);
  const int64_t sums_stride = stride * sizeof(float);
  float* const lower_sums = sums + kTileRows * stride;
  alignas(64) char stored[kTileRows * kTileBytes];
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, sums_stride);
    _tile_loadd(1, sums + kTileRows, sums_stride);
    _tile_loadd(2, lower_sums, sums_stride);
    _tile_loadd(3, lower_sums + kTileRows, sums_stride);
  }
  for (int64_t step = 1; step <= steps; ++step) {
    RESNET_MULTIPLY_TILES(left, left + kTileRows * kTileBytes, kTileBytes, right, kStride);
    left += kBlock * kTileBytes;
    right += kDepth / 2 * kStride;
    if (step % kStepsPerStore == 0) _tile_stored(4, stored, kTileBytes);
  }
  _tile_stored(0, sums, sums_stride);
  _tile_stored(1, sums + kTileRows, sums_stride);
  _tile_stored(2, lower_sums, sums_stride);
  _tile_stored(3, lower_sums + kTileRows, sums_stride);
}

#undef RESNET_MULTIPLY_TILES

// Transposes a 16x16 matrix of pairs.
inline void TransposePairs(__m512i (&x)[16]) {
  Transpose(reinterpret_cast<__m512*>(x));
}

// Writes the transposed kDepth rows of kBlock columns, [kBlock, kDepth]. Rows from num_rows
// on, and the columns outside of the mask, are zeros; if kWhole there are none.
template <bool kWhole>
void TransposeBlock(const Bf16* from, int64_t pitch, int64_t num_rows, __mmask32 mask,
                    char* to) {
  const auto load = [&](int64_t row) {
    if constexpr (kWhole) return _mm512_loadu_si512(from + row * pitch);
    return row < num_rows ? _mm512_maskz_loadu_epi16(mask, from + row * pitch)
                          : _mm512_setzero_si512();
  };
  for (int64_t half = 0; half < 2; ++half) {  // Both would take more than all registers.
    __m512i pairs[16];
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) {
      const __m512i first = load(2 * i), second = load(2 * i + 1);
      pairs[i] = half == 0 ? _mm512_unpacklo_epi16(first, second)
                           : _mm512_unpackhi_epi16(first, second);
    }
    TransposePairs(pairs);
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) {  // Unpacking takes four of each eight columns.
      const int64_t column = i / 4 * 8 + i % 4 + 4 * half;
      _mm512_store_si512(to + column * kTileBytes, pairs[i]);
    }
  }
}

// Writes the transposed rows of a matrix [num_rows, columns] of bfloat16 numbers, whose rows
// are `pitch` elements apart, as blocks: [columns / kBlock, rows / kDepth, kBlock, kDepth].
// Columns and rows are rounded up, the latter to `rows`, a multiple of kDepth, by zeros.
inline void TransposeRows(const Bf16* from, int64_t pitch, int64_t num_rows, int64_t rows,
                          int64_t columns, char* to) {
  for (int64_t r = 0; r < rows; r += kDepth) {
    for (int64_t c = 0; c < columns; c += kBlock) {
      const bool is_whole = r + kDepth <= num_rows && c + kBlock <= columns;
      const auto transpose = is_whole ? TransposeBlock<true> : TransposeBlock<false>;
      transpose(from + r * pitch + c, pitch, num_rows - r, Mask32(columns - c),
                to + (c * rows + r * kBlock) * sizeof(Bf16));
    }
  }
}

// Returns the indices with which a permutation interleaves the low halves of two registers.
inline __m512i InterleaveLow() {
  alignas(64) static constexpr uint16_t kIndex[32] = {
      0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_load_si512(kIndex);
}

// Packs two rows as pairs: those of panel p are at to + p * panel_bytes.
inline void PackPair(const Bf16* first, const Bf16* second, int64_t columns, char* to,
                     int64_t panel_bytes) {
  const __m512i low = InterleaveLow();
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const auto pack = [&](__m512i a, __m512i b) {
    _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
    _mm512_store_si512(to + kTileBytes, _mm512_permutex2var_epi16(a, high, b));
    to += panel_bytes;
  };
  int64_t c = 0;
  for (; c + kBlock <= columns; c += kBlock) {
    pack(_mm512_loadu_si512(first + c), _mm512_loadu_si512(second + c));
  }
  if (c < columns) {
    const __mmask32 mask = Mask32(columns - c);
    pack(_mm512_maskz_loadu_epi16(mask, first + c),
         _mm512_maskz_loadu_epi16(mask, second + c));
  }
}

// Rounds a float32 matrix and packs it as a panel of the right operand, [depth / 2, kBlock,
// 2] with zeros beyond the matrix. Element (i, j) is at from + i * row_stride + j; column j
// is multiplied by scale[j] before it is rounded, unless scale is nullptr.
inline void PackRows(const float* from, int64_t row_stride, int64_t num_rows, int64_t depth,
                     int64_t columns, const float* scale, char* to) {
  const __m512i low = InterleaveLow();
  // _mm512_cvtne2ps_pbh rounds both rows of a pair into one register.
  const __m512i interleave = _mm512_mask_sub_epi16(low, 0xaaaaaaaa, low, _mm512_set1_epi16(16));
  const __mmask16 masks[2] = {Mask16(columns), Mask16(columns - 16)};
  __m512 factors[2];
  for (int half = 0; half < 2; ++half) {
    factors[half] = scale ? _mm512_maskz_loadu_ps(masks[half], scale + 16 * half) : Set(1.0f);
  }
  constexpr int64_t kAhead = 16;  // Rows; the CPU fetches none of itself from other pages.
  for (int64_t i = 0; i < depth; i += 2, to += 2 * kTileBytes) {
    for (int half = 0; half < 2; ++half) {
      const float* first = from + i * row_stride + 16 * half;
      _mm_prefetch(first + kAhead * row_stride, _MM_HINT_T0);
      _mm_prefetch(first + (kAhead + 1) * row_stride, _MM_HINT_T0);
      const __m512 a = i < num_rows ? Load(first, masks[half]) : Zero();
      const __m512 b = i + 1 < num_rows ? Load(first + row_stride, masks[half]) : Zero();
      const __m512i rounded =
          (__m512i)_mm512_cvtne2ps_pbh(Mul(b, factors[half]), Mul(a, factors[half]));
      _mm512_store_si512(to + half * kTileBytes,
                         _mm512_permutexvar_epi16(interleave, rounded));
    }
  }
}

// The same for a matrix whose element (i, j) is at from + i + j * column_stride. The depth
// is a multiple of 2; what lies beyond the matrix is not written.
inline void PackColumns(const float* from, int64_t column_stride, int64_t depth,
                        int64_t columns, char* to) {
  for (int64_t j = 0; j < columns; j += 16) {
    for (int64_t i = 0; i < depth; i += kDepth) {
      const __mmask16 low = Mask16(depth - i), high = Mask16(depth - i - 16);
      __m512i pairs[16];
#pragma GCC unroll 16
      for (int64_t c = 0; c < 16; ++c) {
        const bool exists = j + c < columns;
        const float* column = from + (exists ? (j + c) * column_stride : 0) + i;
        pairs[c] = (__m512i)_mm512_cvtne2ps_pbh(
            _mm512_maskz_loadu_ps(exists ? high : 0, column + 16),
            _mm512_maskz_loadu_ps(exists ? low : 0, column));
      }
      TransposePairs(pairs);
#pragma GCC unroll 16
      for (int64_t p = 0; p < 16; ++p) {
        if (i + 2 * p >= depth) break;
        _mm512_store_si512(to + (i / 2 + p) * 2 * kTileBytes + j * 2 * sizeof(Bf16), pairs[p]);
      }
    }
  }
}

}  // namespace amx
}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_GEMM_AMX_TILES_H_
