// MultiplyTransposed in bfloat16, with float32 accumulation.

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "resnet/native/gemm.h"
#include "resnet/native/gemm_bf16_tiles.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

using namespace bf16;

namespace {

// Block size of MultiplyTransposed: large, because c is read and written once per block.
constexpr int64_t kMaxSummedRows = 512;

// The operands of one tile of c in MultiplyTransposed.
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

constexpr void (*kMultiplyTransposedTiles[kMaxRows][kMaxVectors])(const TransposedTile&) =
    RESNET_BF16_TILES(MultiplyTransposedTile);

// Packs pairs of rows into panels of kWidth columns: [panels][pairs][columns][2].
template <int64_t kWidth>
void InterleaveRows(const Bf16* x, int64_t ld, int64_t num_rows, int64_t num_columns,
                    char* packed) {
  const __m512i halves = InterleaveHalves(), half = _mm512_set1_epi16(16);
  // The second element of each pair is in the second register, at indices from 32.
  const __m512i low = _mm512_mask_add_epi16(halves, 0xaaaaaaaa, halves, half);
  const __m512i high = _mm512_add_epi16(low, half);
  const int64_t num_pairs = CeilDivide(num_rows, 2);
  for (int64_t j = 0; j < num_columns; j += kPanel) {
    char* panels = packed + j * num_pairs * kPairBytes;
    const int64_t columns = std::min(kPanel, num_columns - j);
    const int64_t width = std::min(kWidth, RoundUp(columns, kLanes));
    // Returns the address of 16 columns of a pair.
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
size_t MultiplyTransposedScratchBytes<Bf16>(int64_t m, int64_t k, int64_t n) {
  return RoundUp(std::min(m, kMaxSummedRows), 2) / 2 *
         (RoundUp(k, kLanes) + RoundUp(n, kLanes)) * kPairBytes;
}

template <>
void MultiplyTransposed<Bf16>(int64_t m, int64_t k, int64_t n, const Bf16* a, int64_t lda,
                              const Bf16* b, int64_t ldb, float* c, int64_t ldc,
                              bool accumulate, void* scratch) {
  const int64_t num_blocks = std::max<int64_t>(1, CeilDivide(m, kMaxSummedRows));
  const int64_t block_rows = RoundUp(CeilDivide(m, num_blocks), 2);
  for (int64_t m0 = 0; m0 == 0 || m0 < m; m0 += block_rows) {
    const int64_t rows = std::min(block_rows, m - m0);
    TransposedTile tile;
    tile.num_pairs = CeilDivide(rows, 2);
    tile.ldc = ldc;
    tile.accumulate = accumulate || m0 > 0;
    char* a_pairs = static_cast<char*>(scratch);
    char* b_pairs = a_pairs + tile.num_pairs * RoundUp(k, kLanes) * kPairBytes;
    InterleaveRows<kLanes>(a + m0 * lda, lda, rows, k, a_pairs);
    InterleaveRows<kPanel>(b + m0 * ldb, ldb, rows, n, b_pairs);

    // Meanwhile the next block's rows are prefetched: first those of a, then those of b.
    const int64_t next_rows = std::min(rows, m - m0 - rows);
    const int64_t next = next_rows > 0 ? m0 + rows : 0;
    const int64_t a_bytes = FetchBytes(next_rows, k, lda);
    const int64_t num_tiles = CeilDivide(k, kLanes) * 3 * CeilDivide(n, kPanel);
    tile.prefetch.next =
        reinterpret_cast<const char*>(a_bytes > 0 ? a + next * lda : b + next * ldb);
    tile.prefetch.step = FetchStep(a_bytes + FetchBytes(next_rows, n, ldb),
                                   num_tiles * tile.num_pairs);
    const int64_t fetched_by_tile = tile.num_pairs * tile.prefetch.step;
    int64_t a_left = a_bytes;
    for (int64_t j = 0; j < n; j += kPanel) {
      tile.width = std::min(kPanel, n - j);
      const int64_t num_vectors = CeilDivide(tile.width, kLanes);
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

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
