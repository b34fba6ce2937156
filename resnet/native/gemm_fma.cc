// Multiply and Pack by float32 multiplications, of float32 and of bfloat16, which is widened
// when it is copied or packed.

#include <algorithm>
#include <type_traits>

#include "resnet/native/gemm.h"
#include "resnet/native/gemm_fma_tiles.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

using namespace fma;

namespace {

// Block sizes of Multiply: 256 KB of a and a panel of b, 32 or 64 KB, are in the L2 cache.
constexpr int64_t kMaxDepth = 512;
constexpr int64_t kBlockSize = 64 * 1024;
constexpr int64_t kMaxBlockRows = 480;  // A multiple of kRows.
// From this number of elements on, a result is written with non-temporal stores: its memory
// needn't be fetched first, and it would hardly stay in the cache until it is read.
constexpr int64_t kStreamedSize = 1 << 20;

// to[j, i] = from[i, j] for kLanes by kLanes elements.
void TransposeBlock(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Vector rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = Load(from + i * from_stride);
  Transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) Store(to + i * to_stride, rows[i]);
}

// The blocks of a for one product.
struct Blocks {
  Blocks(int64_t m, int64_t k)
      : depth(EvenPart(k, kMaxDepth, 1)), rows(EvenPart(m, max_rows(), kRows)) {}

  int64_t max_rows() const {
    return std::min(kMaxBlockRows, RoundUp(kBlockSize / depth, kRows));
  }

  // Of the rows of a copy; not a multiple of 4 KB, for the reason given in `Multiply`.
  int64_t copy_stride() const { return RoundUp(depth, 2 * kLineFloats) + kLineFloats; }

  int64_t copy_size() const { return rows * copy_stride(); }

  int64_t depth, rows;
};

// Copies rows of a block to `to`, as float32.
template <typename T>
void CopyRows(const T* from, int64_t from_stride, int64_t rows, int64_t depth, float* to,
              int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
    int64_t i = 0;
    for (; i + kLanes <= depth; i += kLanes) Store(to + i, Load(from + i));
    if (i < depth) Store(to + i, Load(from + i, FirstLanes(depth - i)));
  }
}

// Rounds float32 values in their places to those that T has.
template <typename T>
void RoundValues(float* values, int64_t size) {
  if constexpr (!std::is_same_v<T, float>) {
    T rounded[kLanes];
    for (int64_t i = 0; i < size; i += kLanes) {
      Store(rounded, Load(values + i));
      Store(values + i, Load(rounded));
    }
  }
}

}  // namespace

template <typename T>
size_t PackedBytes(int64_t k, int64_t n) {
  return sizeof(float) * k * RoundUp(n, kLanes);
}

template <typename T>
void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          const float* scale, void* packed) {
  float* out = static_cast<float*>(packed);
  for (int64_t first = 0; first < n; first += kPanel) {
    const int64_t columns = std::min<int64_t>(kPanel, n - first);
    const int64_t width = RoundUp(columns, kLanes);
    const float* from = b + first * column_stride;
    const bool blocks = row_stride == 1 && columns == width;
    const int64_t in_blocks = blocks ? k / kLanes * kLanes : 0;
    for (int64_t p = 0; p < in_blocks; p += kLanes) {
      for (int64_t j = 0; j < columns; j += kLanes) {
        TransposeBlock(from + j * column_stride + p, column_stride, out + p * width + j,
                       width);
      }
    }
    for (int64_t p = in_blocks; p < k; ++p) {
      const float* row = from + p * row_stride;
      float* to = out + p * width;
      if (scale == nullptr) {
        for (int64_t j = 0; j < columns; ++j) to[j] = row[j * column_stride];
      } else {
        for (int64_t j = 0; j < columns; ++j) to[j] = row[j] * scale[first + j];
      }
      std::fill(to + columns, to + width, 0.0f);
    }
    RoundValues<T>(out, k * width);
    out += k * width;
  }
}

template <typename T>
size_t MultiplyScratchBytes(int64_t m, int64_t n, int64_t k) {
  const Blocks blocks(m, k);
  const bool has_sums = !std::is_same_v<T, float> && k > blocks.depth;
  const int64_t rows = std::min(RoundUp(m, kRows), blocks.max_rows());
  return sizeof(float) * rows * (blocks.copy_stride() + (has_sums ? RoundUp(n, kLanes) : 0));
}

template <typename T>
void Multiply(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const void* packed_b,
              T* c, int64_t ldc, const Epilogue<T>& epilogue, void* scratch) {
  constexpr bool kIsWidened = !std::is_same_v<T, float>;
  const Blocks blocks(m, k);
  // Rows that are a multiple of 4 KB apart would compete for a few lines of the L1 cache.
  const bool copies = kIsWidened || (lda % 1024 == 0 && m > 8);
  float* const copy = static_cast<float*>(scratch);
  // The sums over the blocks of k: in c if it is float32.
  float* const block_sums = copy + blocks.copy_size();
  const bool stream = !kIsWidened && m * n >= kStreamedSize && k <= blocks.depth &&
                      ldc % kLanes == 0 &&
                      reinterpret_cast<uintptr_t>(c) % sizeof(Vector) == 0;
  for (int64_t row = 0; row < m; row += blocks.rows) {
    const int64_t rows = std::min(blocks.rows, m - row);
    for (int64_t p = 0; p == 0 || p < k; p += blocks.depth) {
      const int64_t depth = std::min(blocks.depth, k - p);
      const bool last = p + depth == k;
      const T* const block = a + row * lda + p;
      const T* const next_block = last ? a + (row + rows) * lda : block + depth;
      const int64_t next_rows = last ? std::min(blocks.rows, m - row - rows) : rows;
      Left left = {copy, blocks.copy_stride(), TileRows(rows) * blocks.copy_stride()};
      if (copies) {
        CopyRows(block, lda, rows, depth, copy, blocks.copy_stride());
      } else if constexpr (!kIsWidened) {
        left = {block, lda, TileRows(rows) * lda};
      }
      const int64_t tiles = Parts(rows, kRows);
      const int64_t rows_ahead = Parts(next_rows, tiles * Parts(n, kPanel));
      for (int64_t column = 0; column < n; column += kPanel) {
        const int64_t columns = std::min<int64_t>(kPanel, n - column);
        const int64_t width = RoundUp(columns, kLanes);
        const int64_t at = row * ldc + column;
        const float* panel = static_cast<const float*>(packed_b) + column * k + p * width;
        const auto ahead_of = [&](int64_t tile) {
          const int64_t next = (column / kPanel * tiles + tile) * rows_ahead;
          return Ahead{next_block + next * lda, lda,
                       std::max<int64_t>(0, std::min(rows_ahead, next_rows - next))};
        };
        const auto multiply_for = [&](auto* to, int64_t to_stride, const auto& finish) {
          MultiplyPanel<false>(rows, columns, depth, left, panel, width, to, to_stride,
                               finish, ahead_of);
        };
        Finish<T> finish;
        if constexpr (kIsWidened) {
          finish.add_stride = RoundUp(n, kLanes);
          finish.add = p > 0 ? block_sums + column : nullptr;
          if (!last) {
            Finish<float> partial;
            partial.add = finish.add;
            partial.add_stride = finish.add_stride;
            multiply_for(block_sums + column, finish.add_stride, partial);
            continue;
          }
        } else {
          finish.add_stride = ldc;
          finish.add = p > 0 ? c + at : nullptr;
        }
        finish.relu = epilogue.relu && last;
        finish.stream = stream;
        // In float32 not later, since c may share the residual's memory.
        if (kIsWidened || p == 0) {
          if (epilogue.bias != nullptr) finish.bias = epilogue.bias + column;
          if (epilogue.residual != nullptr) finish.residual = epilogue.residual + at;
        }
        multiply_for(c + at, ldc, finish);
      }
    }
  }
  if (stream) FinishStreams();  // Other threads may read c next.
}

#define INSTANTIATE(T)                                                                    \
  template size_t PackedBytes<T>(int64_t, int64_t);                                       \
  template void Pack<T>(const float*, int64_t, int64_t, int64_t, int64_t, const float*,   \
                        void*);                                                           \
  template size_t MultiplyScratchBytes<T>(int64_t, int64_t, int64_t);                     \
  template void Multiply<T>(int64_t, int64_t, int64_t, const T*, int64_t, const void*,    \
                            T*, int64_t, const Epilogue<T>&, void*);
RESNET_FOR_EACH_TYPE(INSTANTIATE)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
