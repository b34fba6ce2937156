// MultiplyTransposed by float32 multiplications, of float32 and of bfloat16, which is
// widened when it is copied.

#include <algorithm>
#include <type_traits>

#include "resnet/native/gemm.h"
#include "resnet/native/gemm_fma_tiles.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

using namespace fma;

namespace {

// Block sizes of MultiplyTransposed: 128 KB of a and of b each, or 256 KB.
constexpr int64_t kTransposedDepth = kRegisters == 32 ? 256 : 128;
constexpr int64_t kTransposedColumns = 256;

// Elements of the whole vectors that cover the rows of a tile in `CopyLeft`.
constexpr int kReach = RoundUp(kRows, kLanes);

// The sizes of the copied blocks of MultiplyTransposed.
struct Copies {
  int64_t depth, rows, columns;  // Of the result, rows are those of transposed(a).

  int64_t tile_stride() const { return depth * TileRows(rows) + kReach; }
  int64_t left_size() const { return Parts(rows, kRows) * tile_stride(); }
  int64_t right_size() const { return depth * RoundUp(columns, kLanes); }
};

// Copies a[depth, rows] into parts for tiles, [depth, TileRows(rows)] each.
template <typename T>
void CopyLeft(const Copies& block, const T* a, int64_t lda, float* to) {
  const int64_t step = TileRows(block.rows);
  for (int64_t p = 0; p < block.depth; ++p, a += lda, to += step) {
    float* part = to;
    int64_t row = 0;
    // Vectors reach into the part's next row, which is written later.
    for (; row + kReach <= block.rows; row += step, part += block.tile_stride()) {
#pragma GCC unroll 4
      for (int i = 0; i < kReach; i += kLanes) Store(part + i, Load(a + row + i));
    }
    for (; row < block.rows; row += step, part += block.tile_stride()) {
      for (int i = 0; i < kReach && row + i < block.rows; i += kLanes) {
        Store(part + i, Load(a + row + i, FirstLanes(block.rows - row - i)));
      }
    }
  }
}

// Copies b[depth, columns] into panels, [depth, width] each, whose widths are whole vectors.
template <typename T>
void CopyRight(const Copies& block, const T* b, int64_t ldb, float* to) {
  const int64_t whole = block.columns / kPanel * kPanel;
  const int64_t rest = block.columns - whole;
  for (int64_t p = 0; p < block.depth; ++p, b += ldb) {
    float* panel = to + p * kPanel;
    for (int64_t column = 0; column < whole; column += kPanel) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Store(panel + v * kLanes, Load(b + column + v * kLanes));
      }
      panel += block.depth * kPanel;
    }
    float* last = to + whole * block.depth + p * RoundUp(rest, kLanes);
    for (int64_t i = 0; i < rest; i += kLanes) {
      Store(last + i, Load(b + whole + i, FirstLanes(rest - i)));
    }
  }
}

}  // namespace

template <typename T>
size_t MultiplyTransposedScratchBytes(int64_t m, int64_t k, int64_t n) {
  const Copies most = {std::min(m, kTransposedDepth),
                       RoundUp(std::min(k, kTransposedColumns), kRows),
                       RoundUp(std::min(n, kTransposedColumns), kPanel)};
  return sizeof(float) * (most.left_size() + most.right_size() + kLineFloats);
}

template <typename T>
void MultiplyTransposed(int64_t m, int64_t k, int64_t n, const T* a, int64_t lda, const T* b,
                        int64_t ldb, float* c, int64_t ldc, bool accumulate, void* scratch) {
  constexpr bool kIsWidened = !std::is_same_v<T, float>;
  const bool copies = kIsWidened || k * n > kCopiedSize;
  const int64_t block_depth = EvenPart(m, kTransposedDepth, 1);
  const int64_t block_rows = EvenPart(k, kTransposedColumns, kRows);
  const int64_t block_columns = EvenPart(n, kTransposedColumns, kPanel);
  float* const right_copy = static_cast<float*>(scratch);
  float* const left_copy =
      right_copy + RoundUp(Copies{block_depth, block_rows, block_columns}.right_size(),
                           kLineFloats);
  for (int64_t left = 0; left < k; left += block_rows) {
    for (int64_t right = 0; right < n; right += block_columns) {
      const int64_t end = std::min(right + block_columns, n);
      for (int64_t row = 0; row == 0 || row < m; row += block_depth) {
        const Copies block = {std::min(block_depth, m - row), std::min(block_rows, k - left),
                              end - right};
        const int64_t next = row + block.depth;
        const T* const a_block = a + row * lda + left;
        Left part = {left_copy, TileRows(block.rows), block.tile_stride()};
        if (copies) {
          CopyLeft(block, a_block, lda, left_copy);
          CopyRight(block, b + row * ldb + right, ldb, right_copy);
        } else if constexpr (!kIsWidened) {
          part = {a_block, lda, TileRows(block.rows)};
        }
        const int64_t a_lines = next < m ? Parts(block.rows, kLineFloats) : 0;
        const int64_t lines = next < m ? a_lines + Parts(end - right, kLineFloats) : 0;
        int64_t line = 0;
        const auto ahead_of = [&](int64_t) {
          const int64_t now = line++;
          if (now < a_lines) return Ahead{a + next * lda + left + now * kLineFloats, lda, 0};
          if (now >= lines) return Ahead{b, 0, 0};
          return Ahead{b + next * ldb + right + (now - a_lines) * kLineFloats, ldb, 0};
        };
        for (int64_t column = right; column < end; column += kPanel) {
          const int64_t columns = std::min<int64_t>(kPanel, end - column);
          const float* panel = right_copy;
          int64_t stride = RoundUp(columns, kLanes);
          if (copies) {
            panel += (column - right) * block.depth;
          } else if (columns % kLanes != 0) {  // So as not to read past the last row.
            CopyRight({block.depth, 0, columns}, b + row * ldb + column, ldb, right_copy);
          } else if constexpr (!kIsWidened) {
            panel = b + row * ldb + column;
            stride = ldb;
          }
          float* const to = c + left * ldc + column;
          Finish<float> finish;
          if (accumulate || row > 0) finish.add = to;
          finish.add_stride = ldc;
          MultiplyPanel<true>(block.rows, columns, block.depth, part, panel, stride, to, ldc,
                              finish, ahead_of);
        }
      }
    }
  }
}

#define INSTANTIATE(T)                                                                    \
  template size_t MultiplyTransposedScratchBytes<T>(int64_t, int64_t, int64_t);           \
  template void MultiplyTransposed<T>(int64_t, int64_t, int64_t, const T*, int64_t,       \
                                      const T*, int64_t, float*, int64_t, bool, void*);
RESNET_FOR_EACH_TYPE(INSTANTIATE)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
