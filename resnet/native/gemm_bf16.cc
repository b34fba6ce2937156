// Multiply and Pack in bfloat16, with float32 accumulation.

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "resnet/native/gemm.h"
#include "resnet/native/gemm_bf16_tiles.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

using namespace bf16;

namespace {

// Block sizes of Multiply: a block of rows of a and a panel of b fit into the L2 cache
// (1 MB).
constexpr int64_t kMaxDepth = 1536;
constexpr int64_t kBlockRows = 8 * kMaxRows;

// The operands of one tile of c in Multiply.
struct Tile {
  const Bf16* a;
  int64_t lda;
  const char* b;
  int64_t depth;   // Size of this block of k.
  float* partial;  // Sums over the previous blocks of k.
  int64_t partial_ld;
  bool is_first, is_last;
  Bf16* c;
  int64_t ldc;
  int64_t width;  // Number of valid columns.
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
  if (tile.depth % 2 != 0) {  // The last element of a row has no partner.
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
      for (int v = 0; v < kVectors; ++v) {  // This order of operands keeps NaN.
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
      if (is_full && v + 1 < kVectors) {  // Masked stores are much slower.
        _mm512_storeu_si512(c, rounded);
      } else {
        _mm512_mask_storeu_epi16(c, Mask32(tile.width - v * kLanes), rounded);
      }
    }
  }
}

constexpr void (*kMultiplyTiles[kMaxRows][kMaxVectors])(const Tile&) =
    RESNET_BF16_TILES(MultiplyTile);

// Returns the number of elements along k that one pass of Multiply sums.
int64_t Depth(int64_t k) {
  const int64_t num_passes = std::max<int64_t>(1, CeilDivide(k, kMaxDepth));
  return std::max<int64_t>(2, RoundUp(CeilDivide(k, num_passes), 2));
}

// Packs a matrix b with contiguous rows, two rows at a time, its columns multiplied by
// `scale` if it isn't nullptr.
void PackRows(const float* b, int64_t row_stride, int64_t k, int64_t n, const float* scale,
              char* packed) {
  const __m512i index = InterleaveHalves();
  const int64_t num_pairs = CeilDivide(k, 2);
  for (int64_t p = 0; p < num_pairs; ++p) {
    const float* first = b + 2 * p * row_stride;
    const float* second = 2 * p + 1 < k ? first + row_stride : first;
    const __mmask16 has_second = 2 * p + 1 < k ? 0xffff : 0;
    for (int64_t j = 0; j < n; j += kLanes) {
      const int64_t panel = j / kPanel * kPanel;
      const int64_t width = std::min(kPanel, RoundUp(n - panel, kLanes));
      const __mmask16 mask = Mask16(n - j);
      const __m512 factors =
          scale == nullptr ? _mm512_set1_ps(1.0f) : _mm512_maskz_loadu_ps(mask, scale + j);
      const __m512bh rounded = _mm512_cvtne2ps_pbh(
          _mm512_mul_ps(_mm512_maskz_loadu_ps(mask & has_second, second + j), factors),
          _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, first + j), factors));
      _mm512_store_si512(
          packed + (panel * num_pairs + p * width + j - panel) * kPairBytes,
          _mm512_permutexvar_epi16(index, (__m512i)rounded));
    }
  }
}

// Transposes a 16x16 matrix of 32-bit numbers.
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

// Packs a matrix b with contiguous columns, 16 columns and 16 pairs at a time.
void PackColumns(const float* b, int64_t column_stride, int64_t k, int64_t n,
                 char* packed) {
  const int64_t num_pairs = CeilDivide(k, 2);
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

}  // namespace

template <>
size_t PackedBytes<Bf16>(int64_t k, int64_t n) {
  return CeilDivide(k, 2) * RoundUp(n, kLanes) * kPairBytes;
}

template <>
void Pack<Bf16>(const float* b, int64_t row_stride, int64_t column_stride, int64_t k,
                int64_t n, const float* scale, void* packed) {
  if (column_stride == 1) {
    PackRows(b, row_stride, k, n, scale, static_cast<char*>(packed));
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
  const int64_t num_pairs = CeilDivide(k, 2);
  Tile tile;
  tile.lda = lda;
  tile.ldc = ldc;
  tile.partial_ld = RoundUp(n, kLanes);
  tile.epilogue.relu = epilogue.relu;
  for (int64_t i0 = 0; i0 < m; i0 += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, m - i0);
    const int64_t num_tiles = CeilDivide(rows, kMaxRows) * CeilDivide(n, kPanel);
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
        const int64_t num_vectors = CeilDivide(tile.width, kLanes);
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

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
