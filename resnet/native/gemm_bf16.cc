// Matrix products in bfloat16 with float32 sums, for processors with AVX512_BF16.
//
// Everything is built on vdpbf16ps, which adds two products to each of 16 float32 sums:
// its operands are pairs of neighbours along the summed dimension. A tile of sums (6 rows
// times 4 vectors of 16 columns) stays in registers while 4 vectors of pairs and one
// broadcast pair a row are loaded: 10 loads for 24 instructions.

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "resnet/native/gemm.h"

#pragma GCC push_options
// GCC 12 takes undefined registers inside of intrinsics for mistakes (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16")

namespace resnet {
namespace {

constexpr int64_t kLanes = 16;  // Float32 sums, or bfloat16 pairs, of a register.
constexpr int kMaxVectors = 4;  // Of a tile. 64 divides most numbers of channels.
constexpr int kMaxRows = 6;     // Of a tile: 24 registers of sums, 8 for operands.
constexpr int64_t kPanel = kMaxVectors * kLanes;
constexpr int64_t kPairBytes = 4;
constexpr int64_t kVectorBytes = 64;

// Multiply's blocks: a block of a's rows and a panel of b stay in the L2 cache (1 MB).
constexpr int64_t kMaxDepth = 1536;
constexpr int64_t kBlockRows = 8 * kMaxRows;

// MultiplyTransposed's blocks: long, because c is read and written once a block.
constexpr int64_t kMaxSummedRows = 512;

int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }
int64_t RoundUp(int64_t x, int64_t y) { return CeilDiv(x, y) * y; }

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
int64_t FetchBytes(int64_t num_rows, int64_t num_columns, int64_t ld) {
  return ld > 2 * num_columns ? 0 : num_rows * ld * int64_t{sizeof(Bf16)};
}

// Returns the step that fetches so many bytes during num_pairs iterations.
int64_t FetchStep(int64_t bytes, int64_t num_pairs) {
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

// What one tile of Multiply's c is computed from.
struct Tile {
  const Bf16* a;
  int64_t lda;
  const char* b;
  int64_t depth;   // Of this block of k.
  float* partial;  // Sums of the blocks of k before this one.
  int64_t partial_ld;
  bool is_first, is_last;
  Bf16* c;
  int64_t ldc;
  int64_t width;  // Columns that exist.
  Epilogue<Bf16> epilogue;
  Prefetch prefetch;
};

inline __m512 LoadBf16(__mmask16 mask, const Bf16* x) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16));
}

template <int kRows, int kVectors>
void MultiplyTile(const Tile& tile) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = tile.is_first ? _mm512_setzero_ps()
                                 : _mm512_load_ps(tile.partial + r * tile.partial_ld +
                                                  v * kLanes);
    }
  }
  const Epilogue<Bf16>& epilogue = tile.epilogue;
  if (tile.is_last) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; v += 2) {
        __builtin_prefetch(tile.c + r * tile.ldc + v * kLanes, 1);
        if (epilogue.residual != nullptr) {
          __builtin_prefetch(epilogue.residual + r * tile.ldc + v * kLanes);
        }
      }
    }
  }

  const char* a = reinterpret_cast<const char*>(tile.a);
  const int64_t row_step = tile.lda * sizeof(Bf16);
  const int64_t num_pairs = tile.depth / 2;
  Accumulate<kRows, kVectors>(a, row_step, kPairBytes, tile.b, num_pairs, tile.prefetch,
                              sums);
  if (tile.depth % 2 != 0) {  // The last element of a row has no neighbour of its own.
    const char* b = tile.b + num_pairs * kVectors * kVectorBytes;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh left =
          (__m512bh)_mm512_set1_epi32(tile.a[r * tile.lda + tile.depth - 1].bits);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(
            sums[r][v], left, (__m512bh)_mm512_load_si512(b + v * kVectorBytes));
      }
    }
  }

  if (!tile.is_last) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        _mm512_store_ps(tile.partial + r * tile.partial_ld + v * kLanes, sums[r][v]);
      }
    }
    return;
  }
  if (epilogue.bias != nullptr) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 bias = _mm512_maskz_loadu_ps(Mask16(tile.width - v * kLanes),
                                                epilogue.bias + v * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) sums[r][v] = _mm512_add_ps(sums[r][v], bias);
    }
  }
  if (epilogue.residual != nullptr) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = Mask16(tile.width - v * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = _mm512_add_ps(
            sums[r][v], LoadBf16(mask, epilogue.residual + r * tile.ldc + v * kLanes));
      }
    }
  }
  if (epilogue.relu) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {  // In this order a NaN stays one.
        sums[r][v] = _mm512_max_ps(_mm512_setzero_ps(), sums[r][v]);
      }
    }
  }
  const bool is_full = tile.width == kVectors * kLanes;
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 2) {
      Bf16* c = tile.c + r * tile.ldc + v * kLanes;
      const __m512 high = v + 1 < kVectors ? sums[r][v + 1 < kVectors ? v + 1 : v]
                                           : _mm512_setzero_ps();
      const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high, sums[r][v]);
      if (is_full && v + 1 < kVectors) {  // Stores with a mask are much slower.
        _mm512_storeu_si512(c, rounded);
      } else {
        _mm512_mask_storeu_epi16(c, Mask32(tile.width - v * kLanes), rounded);
      }
    }
  }
}

// What one tile of MultiplyTransposed's c is computed from.
struct TransposedTile {
  const char* a;
  const char* b;
  int64_t num_pairs;
  float* c;
  int64_t ldc;
  int64_t width;
  bool accumulate;
  Prefetch prefetch;
};

template <int kRows, int kVectors>
void MultiplyTransposedTile(const TransposedTile& tile) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = _mm512_setzero_ps();
      __builtin_prefetch(tile.c + r * tile.ldc + v * kLanes, 1);
    }
  }
  Accumulate<kRows, kVectors>(tile.a, kPairBytes, kVectorBytes, tile.b, tile.num_pairs,
                              tile.prefetch, sums);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t width = tile.width - v * kLanes;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      float* c = tile.c + r * tile.ldc + v * kLanes;
      if (width >= kLanes) {
        if (tile.accumulate) sums[r][v] = _mm512_add_ps(sums[r][v], _mm512_loadu_ps(c));
        _mm512_storeu_ps(c, sums[r][v]);
      } else {
        const __mmask16 mask = Mask16(width);
        if (tile.accumulate) {
          sums[r][v] = _mm512_add_ps(sums[r][v], _mm512_maskz_loadu_ps(mask, c));
        }
        _mm512_mask_storeu_ps(c, mask, sums[r][v]);
      }
    }
  }
}

#define TILES_OF_ROWS(kernel, rows) \
  { kernel<rows, 1>, kernel<rows, 2>, kernel<rows, 3>, kernel<rows, 4> }
#define TILES(kernel)                                                              \
  {                                                                                \
    TILES_OF_ROWS(kernel, 1), TILES_OF_ROWS(kernel, 2), TILES_OF_ROWS(kernel, 3),  \
        TILES_OF_ROWS(kernel, 4), TILES_OF_ROWS(kernel, 5), TILES_OF_ROWS(kernel, 6) \
  }
constexpr void (*kMultiplyTiles[kMaxRows][kMaxVectors])(const Tile&) =
    TILES(MultiplyTile);
constexpr void (*kMultiplyTransposedTiles[kMaxRows][kMaxVectors])(const TransposedTile&) =
    TILES(MultiplyTransposedTile);
#undef TILES
#undef TILES_OF_ROWS

// Returns how many of k's elements one pass of Multiply sums.
int64_t Depth(int64_t k) {
  const int64_t num_passes = std::max<int64_t>(1, CeilDiv(k, kMaxDepth));
  return std::max<int64_t>(2, RoundUp(CeilDiv(k, num_passes), 2));
}

// Returns the order that makes 16 pairs of the two halves of a register.
inline __m512i InterleaveHalves() {
  alignas(64) static constexpr uint16_t kIndex[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_load_si512(kIndex);
}

// Packs b whose rows are contiguous, two rows at a time.
void PackRows(const float* b, int64_t row_stride, int64_t k, int64_t n, char* packed) {
  const __m512i index = InterleaveHalves();
  const int64_t num_pairs = CeilDiv(k, 2);
  for (int64_t p = 0; p < num_pairs; ++p) {
    const float* first = b + 2 * p * row_stride;
    const float* second = 2 * p + 1 < k ? first + row_stride : first;
    const __mmask16 has_second = 2 * p + 1 < k ? 0xffff : 0;
    for (int64_t j = 0; j < n; j += kLanes) {
      const int64_t panel = j / kPanel * kPanel;
      const int64_t width = std::min(kPanel, RoundUp(n - panel, kLanes));
      const __mmask16 mask = Mask16(n - j);
      const __m512bh rounded =
          _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(mask & has_second, second + j),
                              _mm512_maskz_loadu_ps(mask, first + j));
      _mm512_store_si512(
          packed + (panel * num_pairs + p * width + j - panel) * kPairBytes,
          _mm512_permutexvar_epi16(index, (__m512i)rounded));
    }
  }
}

// Transposes 16 rows of 16 32-bit numbers.
inline void Transpose(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
  }
}

// Packs b whose columns are contiguous: 16 columns and 16 pairs at a time.
void PackColumns(const float* b, int64_t column_stride, int64_t k, int64_t n,
                 char* packed) {
  const int64_t num_pairs = CeilDiv(k, 2);
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t panel = j / kPanel * kPanel;
    const int64_t width = std::min(kPanel, RoundUp(n - panel, kLanes));
    char* to = packed + (panel * num_pairs + j - panel) * kPairBytes;
    for (int64_t p = 0; p < num_pairs; p += kLanes) {
      const float* from = b + j * column_stride + 2 * p;
      const __mmask16 low = Mask16(k - 2 * p), high = Mask16(k - 2 * p - 16);
      __m512i pairs[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const bool exists = j + i < n;
        const float* column = exists ? from + i * column_stride : from;
        pairs[i] = (__m512i)_mm512_cvtne2ps_pbh(
            _mm512_maskz_loadu_ps(exists ? high : 0, column + 16),
            _mm512_maskz_loadu_ps(exists ? low : 0, column));
      }
      Transpose(pairs);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (p + i < num_pairs) {
          _mm512_store_si512(to + (p + i) * width * kPairBytes, pairs[i]);
        }
      }
    }
  }
}

// Writes pairs of rows in panels of kWidth columns: [panels][pairs][columns][2].
template <int64_t kWidth>
void InterleaveRows(const Bf16* x, int64_t ld, int64_t num_rows, int64_t num_columns,
                    char* packed) {
  const __m512i halves = InterleaveHalves(), half = _mm512_set1_epi16(16);
  // The second elements come from the second register, whose indices start at 32.
  const __m512i low = _mm512_mask_add_epi16(halves, 0xaaaaaaaa, halves, half);
  const __m512i high = _mm512_add_epi16(low, half);
  const int64_t num_pairs = CeilDiv(num_rows, 2);
  for (int64_t j = 0; j < num_columns; j += kPanel) {
    char* panels = packed + j * num_pairs * kPairBytes;
    const int64_t columns = std::min(kPanel, num_columns - j);
    const int64_t width = std::min(kWidth, RoundUp(columns, kLanes));
    // Returns the place of 16 columns of a pair.
    const auto place = [=](int64_t p, int64_t i) {
      const int64_t panel = i / kWidth * kWidth;
      return panels + (panel * num_pairs + p * width + i - panel) * kPairBytes;
    };
    const int64_t num_whole = columns == kPanel ? num_rows / 2 : 0;
    for (int64_t p = 0; p < num_whole; ++p) {
      const Bf16* row = x + 2 * p * ld + j;
#pragma GCC unroll 2
      for (int64_t i = 0; i < kPanel; i += 2 * kLanes) {
        const __m512i first = _mm512_loadu_si512(row + i);
        const __m512i second = _mm512_loadu_si512(row + ld + i);
        _mm512_store_si512(place(p, i), _mm512_permutex2var_epi16(first, low, second));
        _mm512_store_si512(place(p, i + kLanes),
                           _mm512_permutex2var_epi16(first, high, second));
      }
    }
    for (int64_t p = num_whole; p < num_pairs; ++p) {
      const Bf16* row = x + 2 * p * ld + j;
      for (int64_t i = 0; i < columns; i += kLanes) {
        const __mmask16 mask = Mask16(columns - i);
        const __m256i first = _mm256_maskz_loadu_epi16(mask, row + i);
        const __m256i second = 2 * p + 1 < num_rows
                                   ? _mm256_maskz_loadu_epi16(mask, row + ld + i)
                                   : _mm256_setzero_si256();
        _mm512_store_si512(place(p, i), _mm512_permutex2var_epi16(
                                            _mm512_castsi256_si512(first), low,
                                            _mm512_castsi256_si512(second)));
      }
    }
  }
}

}  // namespace

template <>
size_t PackedBytes<Bf16>(int64_t k, int64_t n) {
  return CeilDiv(k, 2) * RoundUp(n, kLanes) * kPairBytes;
}

template <>
void Pack<Bf16>(const float* b, int64_t row_stride, int64_t column_stride, int64_t k,
                int64_t n, void* packed) {
  if (column_stride == 1) {
    PackRows(b, row_stride, k, n, static_cast<char*>(packed));
  } else {
    PackColumns(b, column_stride, k, n, static_cast<char*>(packed));
  }
}

template <>
size_t MultiplyScratchBytes<Bf16>(int64_t m, int64_t n, int64_t k) {
  return k <= Depth(k) ? 0 : std::min(m, kBlockRows) * RoundUp(n, kLanes) * sizeof(float);
}

template <>
void Multiply<Bf16>(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t lda,
                    const void* packed_b, Bf16* c, int64_t ldc,
                    const Epilogue<Bf16>& epilogue, void* scratch) {
  const int64_t max_depth = Depth(k);
  const int64_t num_pairs = CeilDiv(k, 2);
  Tile tile;
  tile.lda = lda;
  tile.ldc = ldc;
  tile.partial_ld = RoundUp(n, kLanes);
  tile.epilogue.relu = epilogue.relu;
  for (int64_t i0 = 0; i0 < m; i0 += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, m - i0);
    const int64_t num_tiles = CeilDiv(rows, kMaxRows) * CeilDiv(n, kPanel);
    const int64_t next_rows = std::min(rows, m - i0 - rows);
    tile.prefetch.next =
        reinterpret_cast<const char*>(next_rows > 0 ? a + (i0 + rows) * lda : a);
    tile.prefetch.step = FetchStep(FetchBytes(next_rows, k, lda), num_tiles * (k / 2));
    for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += max_depth) {
      tile.depth = std::min(max_depth, k - k0);
      tile.is_first = k0 == 0;
      tile.is_last = k0 + tile.depth == k;
      for (int64_t j = 0; j < n; j += kPanel) {
        tile.width = std::min(kPanel, n - j);
        const int64_t num_vectors = CeilDiv(tile.width, kLanes);
        tile.b = static_cast<const char*>(packed_b) +
                 (j * num_pairs + k0 / 2 * num_vectors * kLanes) * kPairBytes;
        if (epilogue.bias != nullptr) tile.epilogue.bias = epilogue.bias + j;
        for (int64_t i = 0; i < rows; i += kMaxRows) {
          const int64_t tile_rows = std::min<int64_t>(kMaxRows, rows - i);
          tile.a = a + (i0 + i) * lda + k0;
          tile.c = c + (i0 + i) * ldc + j;
          tile.partial = static_cast<float*>(scratch) + i * tile.partial_ld + j;
          if (epilogue.residual != nullptr) {
            tile.epilogue.residual = epilogue.residual + (i0 + i) * ldc + j;
          }
          kMultiplyTiles[tile_rows - 1][num_vectors - 1](tile);
          tile.prefetch.next += tile.depth / 2 * tile.prefetch.step;
        }
      }
    }
  }
}

template <>
size_t MultiplyTransposedScratchBytes<Bf16>(int64_t m, int64_t k, int64_t n) {
  return RoundUp(std::min(m, kMaxSummedRows), 2) / 2 *
         (RoundUp(k, kLanes) + RoundUp(n, kLanes)) * kPairBytes;
}

template <>
void MultiplyTransposed<Bf16>(int64_t m, int64_t k, int64_t n, const Bf16* a, int64_t lda,
                              const Bf16* b, int64_t ldb, float* c, int64_t ldc,
                              bool accumulate, void* scratch) {
  const int64_t num_blocks = std::max<int64_t>(1, CeilDiv(m, kMaxSummedRows));
  const int64_t block_rows = RoundUp(CeilDiv(m, num_blocks), 2);
  for (int64_t m0 = 0; m0 == 0 || m0 < m; m0 += block_rows) {
    const int64_t rows = std::min(block_rows, m - m0);
    TransposedTile tile;
    tile.num_pairs = CeilDiv(rows, 2);
    tile.ldc = ldc;
    tile.accumulate = accumulate || m0 > 0;
    char* a_pairs = static_cast<char*>(scratch);
    char* b_pairs = a_pairs + tile.num_pairs * RoundUp(k, kLanes) * kPairBytes;
    InterleaveRows<kLanes>(a + m0 * lda, lda, rows, k, a_pairs);
    InterleaveRows<kPanel>(b + m0 * ldb, ldb, rows, n, b_pairs);

    // The next block's rows are fetched meanwhile: first those of a, then those of b.
    const int64_t next_rows = std::min(rows, m - m0 - rows);
    const int64_t next = next_rows > 0 ? m0 + rows : 0;
    const int64_t a_bytes = FetchBytes(next_rows, k, lda);
    const int64_t num_tiles = CeilDiv(k, kLanes) * 3 * CeilDiv(n, kPanel);
    tile.prefetch.next =
        reinterpret_cast<const char*>(a_bytes > 0 ? a + next * lda : b + next * ldb);
    tile.prefetch.step = FetchStep(a_bytes + FetchBytes(next_rows, n, ldb),
                                   num_tiles * tile.num_pairs);
    const int64_t fetched_by_tile = tile.num_pairs * tile.prefetch.step;
    int64_t a_left = a_bytes;
    for (int64_t j = 0; j < n; j += kPanel) {
      tile.width = std::min(kPanel, n - j);
      const int64_t num_vectors = CeilDiv(tile.width, kLanes);
      tile.b = b_pairs + j * tile.num_pairs * kPairBytes;
      for (int64_t i = 0; i < k;) {
        // 16 rows of pairs share a vector: 6 + 5 + 5.
        const int64_t left = std::min(k, i / kLanes * kLanes + kLanes) - i;
        const int64_t tile_rows = left <= kMaxRows ? left : left % 5 == 0 ? 5 : kMaxRows;
        tile.a = a_pairs + i / kLanes * kLanes * tile.num_pairs * kPairBytes +
                 i % kLanes * kPairBytes;
        tile.c = c + i * ldc + j;
        kMultiplyTransposedTiles[tile_rows - 1][num_vectors - 1](tile);
        tile.prefetch.next += fetched_by_tile;
        if (a_left > 0 && a_left <= fetched_by_tile) {
          tile.prefetch.next = reinterpret_cast<const char*>(b + next * ldb);
        }
        a_left -= fetched_by_tile;
        i += tile_rows;
      }
    }
  }
}

}  // namespace resnet

#pragma GCC diagnostic pop
#pragma GCC pop_options
