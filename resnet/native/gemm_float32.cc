// Single-threaded matrix products in float32.
//
// Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM
// TOMS 34, 2008). A tile of c stays in registers while it is summed, and blocks of the
// operands stay in the L2 cache. Each tile prefetches a part of the next block from
// memory: in a network's first layers, whose products have a short inner dimension,
// waiting for memory would take a third of the time.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "resnet/native/gemm.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace {

// Tile size: 24 of 32 registers hold sums, or 12 of 16. Among the tiles with as many sums
// these read the fewest values: 44 for 384 products, or 22 for 96.
constexpr int kRows = kRegisters == 32 ? 12 : 6;
constexpr int kVectors = 2;
constexpr int kPanel = kVectors * kLanes;  // Columns of b that are packed together.
constexpr int kLineFloats = 16;  // Of a cache line.
constexpr int kVectorsOfLine = kLineFloats / kLanes;

// Block sizes of Multiply: 256 KB of a and a panel of b, 32 or 64 KB, are in the L2 cache.
constexpr int64_t kMaxDepth = 512;
constexpr int64_t kBlockSize = 64 * 1024;
constexpr int64_t kMaxBlockRows = 480;  // A multiple of kRows.
// From this number of elements on, a result is written with non-temporal stores: its memory
// needn't be fetched first, and it would hardly stay in the cache until it is read.
constexpr int64_t kStreamedSize = 1 << 20;

// Block sizes of MultiplyTransposed: 128 KB of a and of b each, or 256 KB.
constexpr int64_t kTransposedDepth = kRegisters == 32 ? 256 : 128;
constexpr int64_t kTransposedColumns = 256;
// Results of more elements than this are computed from copies of the blocks, which tiles
// read from consecutive addresses: rows of a and b are often a multiple of 4 KB apart, and
// compete for a few lines of the L1 cache. With AVX-512, copies for small results would
// cost more than that.
constexpr int64_t kCopiedSize = kRegisters == 32 ? 128 * 1024 : 0;
constexpr int64_t kStepsAhead = 8;  // Prefetch distance from the L2 cache, without copies.

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Returns the number of parts of size at most `limit` in `total`.
int64_t Parts(int64_t total, int64_t limit) {
  return std::max<int64_t>(1, (total + limit - 1) / limit);
}

// Returns the size of nearly equal parts of `total`, a multiple of `step`.
int64_t EvenPart(int64_t total, int64_t limit, int64_t step) {
  const int64_t parts = Parts(total, limit);
  return RoundUp(std::max<int64_t>(1, (total + parts - 1) / parts), step);
}

// How the sums of a tile are stored.
struct Finish {
  bool add = false;  // To the values in c.
  bool relu = false;
  bool stream = false;  // With non-temporal stores.
  const float* bias = nullptr;
  const float* residual = nullptr;
};

// The memory that is prefetched into the L2 cache while a tile of some depth is computed:
// `depth` elements of each of `rows` rows, or a cache line of each of `depth` rows if it is
// transposed.
struct Ahead {
  const float* at;
  int64_t stride;
  int64_t rows;
};

// Stores the vectors at `v` of a tile of sums. Of a partial one, only some lanes are valid.
template <bool kPartial, int R, int V>
[[gnu::always_inline]] inline void FinishVectors(const Vector (&sum)[R][V], int v,
                                                 Mask lanes, const Finish& finish,
                                                 float* c, int64_t ldc) {
  const auto load = [=](const float* from) {
    if constexpr (kPartial) return Load(from, lanes);
    return Load(from);
  };
  const Vector bias = finish.bias == nullptr ? Zero() : load(finish.bias + v * kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const int64_t at = r * ldc + v * kLanes;
    Vector value = sum[r][v];
    if (finish.add) value = Add(load(c + at), value);
    if (finish.bias != nullptr) value = Add(value, bias);
    if (finish.residual != nullptr) value = Add(value, load(finish.residual + at));
    if (finish.relu) value = Max(Zero(), value);  // This order of operands keeps NaN.
    if constexpr (kPartial) {
      Store(c + at, lanes, value);
    } else if (finish.stream) {
      Stream(c + at, value);
    } else {
      Store(c + at, value);
    }
  }
}

// Computes a tile of c, a[R, depth] * b[depth, V * kLanes]. Element (r, p) of a is at
// a[r * lda + p], or at a[p * lda + r] if it is transposed. In the last vector only the
// first `last_lanes` lanes are valid.
template <int R, int V, bool kTransposed>
void Tile(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
          int64_t ldc, int64_t last_lanes, const Finish& finish, Ahead ahead) {
  Vector sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sum[r][v] = Zero();
      if (v % kVectorsOfLine != 0) continue;
      // These values arrive while the sums are computed.
      if (!finish.stream) __builtin_prefetch(c + r * ldc + v * kLanes, 1);
      if (finish.residual != nullptr) {
        __builtin_prefetch(finish.residual + r * ldc + v * kLanes);
      }
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    if (kTransposed) {
      __builtin_prefetch(ahead.at, 0, 2);
      ahead.at += ahead.stride;
      if (kCopiedSize > 0) {
        // The hardware prefetcher doesn't follow strides of more than a few lines.
        __builtin_prefetch(a + kStepsAhead * lda);
        __builtin_prefetch(a + kStepsAhead * lda + R - 1);
#pragma GCC unroll 4
        for (int v = 0; v < V; v += kVectorsOfLine) {
          __builtin_prefetch(b + kStepsAhead * ldb + v * kLanes);
        }
      }
    } else if (p % kLineFloats == 0) {
      for (int64_t r = 0; r < ahead.rows; ++r) {
        __builtin_prefetch(ahead.at + r * ahead.stride + p, 0, 2);
      }
    }
    Vector right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) right[v] = Load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vector left = Set(kTransposed ? a[r] : a[r * lda]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = MulAdd(left, right[v], sum[r][v]);
    }
    a += kTransposed ? lda : 1;
    b += ldb;
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    if (v == V - 1 && last_lanes < kLanes) {  // Masked stores are slow.
      FinishVectors<true>(sum, v, FirstLanes(last_lanes), finish, c, ldc);
    } else {
      FinishVectors<false>(sum, v, Mask(), finish, c, ldc);
    }
  }
}

using TileFunction = void (*)(int64_t, const float*, int64_t, const float*, int64_t, float*,
                              int64_t, int64_t, const Finish&, Ahead);
using TileTable = std::array<TileFunction, kRows * kVectors>;

template <bool kTransposed, size_t... I>
constexpr TileTable MakeTable(std::index_sequence<I...>) {
  return {Tile<I / kVectors + 1, I % kVectors + 1, kTransposed>...};
}

// The function for a tile of r rows and v vectors is at (r - 1) * kVectors + v - 1.
template <bool kTransposed>
constexpr TileTable kTiles =
    MakeTable<kTransposed>(std::make_index_sequence<kRows * kVectors>());

// Returns the number of rows per tile. A last tile of one or two rows would be bound by
// the latency of its additions.
int64_t TileRows(int64_t rows) { return EvenPart(rows, kRows, 1); }

// The left operand of some tiles: those of tile i start at data + i * tile_stride.
struct Left {
  const float* data;
  int64_t lda, tile_stride;
};

// Computes a[rows, depth] * b[depth, columns] for c, with at most kPanel columns.
// ahead_of(i) returns what to prefetch with tile i.
template <bool kTransposed, typename AheadOf>
void MultiplyPanel(int64_t rows, int64_t columns, int64_t depth, Left a, const float* b,
                   int64_t ldb, float* c, int64_t ldc, Finish finish,
                   const AheadOf& ahead_of) {
  const int vectors = static_cast<int>((columns + kLanes - 1) / kLanes);
  const int64_t last_lanes = columns - (vectors - 1) * kLanes;
  const int64_t step = TileRows(rows);
  int64_t tile = 0;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    kTiles<kTransposed>[(count - 1) * kVectors + vectors - 1](
        depth, a.data, a.lda, b, ldb, c, ldc, last_lanes, finish, ahead_of(tile++));
    a.data += a.tile_stride;
    c += step * ldc;
    if (finish.residual != nullptr) finish.residual += step * ldc;
  }
}

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
  Blocks(int64_t m, int64_t k, int64_t lda)
      : depth(EvenPart(k, kMaxDepth, 1)),
        rows(EvenPart(m, max_rows(), kRows)),
        copy(lda % 1024 == 0 && m > 8) {}

  int64_t max_rows() const {
    return std::min(kMaxBlockRows, RoundUp(kBlockSize / depth, kRows));
  }

  // Not a multiple of 4 KB, for the reason given at `copy`.
  int64_t copy_stride() const { return RoundUp(depth, 2 * kLineFloats) + kLineFloats; }

  int64_t depth, rows;
  // Rows that are a multiple of 4 KB apart would compete for a few lines of the L1 cache.
  bool copy;
};

}  // namespace

template <>
size_t PackedBytes<float>(int64_t k, int64_t n) {
  return sizeof(float) * k * RoundUp(n, kLanes);
}

template <>
void Pack<float>(const float* b, int64_t row_stride, int64_t column_stride, int64_t k,
                 int64_t n, void* packed) {
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
      for (int64_t j = 0; j < columns; ++j) out[p * width + j] = row[j * column_stride];
      std::fill(out + p * width + columns, out + (p + 1) * width, 0.0f);
    }
    out += k * width;
  }
}

template <>
size_t MultiplyScratchBytes<float>(int64_t m, int64_t, int64_t k) {
  const Blocks blocks(m, k, 0);
  const int64_t rows = std::min(RoundUp(m, kRows), blocks.max_rows());
  return sizeof(float) * rows * blocks.copy_stride();
}

template <>
void Multiply<float>(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                     const void* packed_b, float* c, int64_t ldc,
                     const Epilogue<float>& epilogue, void* scratch) {
  const Blocks blocks(m, k, lda);
  float* copy = static_cast<float*>(scratch);
  const bool stream = m * n >= kStreamedSize && k <= blocks.depth && ldc % kLanes == 0 &&
                      reinterpret_cast<uintptr_t>(c) % sizeof(Vector) == 0;
  for (int64_t row = 0; row < m; row += blocks.rows) {
    const int64_t rows = std::min(blocks.rows, m - row);
    for (int64_t p = 0; p == 0 || p < k; p += blocks.depth) {
      const int64_t depth = std::min(blocks.depth, k - p);
      const bool last = p + depth == k;
      const float* block = a + row * lda + p;
      const float* next_block = last ? a + (row + rows) * lda : block + depth;
      const int64_t next_rows = last ? std::min(blocks.rows, m - row - rows) : rows;
      int64_t stride = lda;
      if (blocks.copy) {
        stride = blocks.copy_stride();
        for (int64_t r = 0; r < rows; ++r) {
          std::memcpy(copy + r * stride, block + r * lda, sizeof(float) * depth);
        }
        block = copy;
      }
      const int64_t tiles = Parts(rows, kRows);
      const int64_t rows_ahead = Parts(next_rows, tiles * Parts(n, kPanel));
      for (int64_t column = 0; column < n; column += kPanel) {
        const int64_t columns = std::min<int64_t>(kPanel, n - column);
        const int64_t width = RoundUp(columns, kLanes);
        const int64_t at = row * ldc + column;
        Finish finish;
        finish.add = p > 0;
        finish.relu = epilogue.relu && last;
        finish.stream = stream;
        if (p == 0) {  // Not later: c may share the residual's memory.
          if (epilogue.bias != nullptr) finish.bias = epilogue.bias + column;
          if (epilogue.residual != nullptr) finish.residual = epilogue.residual + at;
        }
        const auto ahead_of = [&](int64_t tile) {
          const int64_t next = (column / kPanel * tiles + tile) * rows_ahead;
          return Ahead{next_block + next * lda, lda,
                       std::max<int64_t>(0, std::min(rows_ahead, next_rows - next))};
        };
        const float* panel = static_cast<const float*>(packed_b) + column * k + p * width;
        const Left left = {block, stride, TileRows(rows) * stride};
        MultiplyPanel<false>(rows, columns, depth, left, panel, width, c + at, ldc, finish,
                             ahead_of);
      }
    }
  }
  if (stream) _mm_sfence();  // Other threads may read c next.
}

namespace {

// The sizes of the copied blocks of MultiplyTransposed.
struct Copies {
  int64_t depth, rows, columns;  // Of the result, rows are those of transposed(a).

  int64_t tile_stride() const { return depth * TileRows(rows) + kLanes; }
  int64_t left_size() const { return Parts(rows, kRows) * tile_stride(); }
  int64_t right_size() const { return depth * RoundUp(columns, kLanes); }
};

// Copies a[depth, rows] into parts for tiles, [depth, TileRows(rows)] each.
void CopyLeft(const Copies& block, const float* a, int64_t lda, float* to) {
  const int64_t step = TileRows(block.rows);
  for (int64_t p = 0; p < block.depth; ++p, a += lda, to += step) {
    float* part = to;
    int64_t row = 0;
    // A vector reaches into the part's next row, which is written later.
    for (; row + kLanes <= block.rows; row += step, part += block.tile_stride()) {
      Store(part, Load(a + row));
    }
    for (; row < block.rows; row += step, part += block.tile_stride()) {
      Store(part, Load(a + row, FirstLanes(block.rows - row)));
    }
  }
}

// Copies b[depth, columns] into panels, [depth, width] each, whose widths are whole vectors.
void CopyRight(const Copies& block, const float* b, int64_t ldb, float* to) {
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

template <>
size_t MultiplyTransposedScratchBytes<float>(int64_t m, int64_t k, int64_t n) {
  const Copies most = {std::min(m, kTransposedDepth),
                       RoundUp(std::min(k, kTransposedColumns), kRows),
                       RoundUp(std::min(n, kTransposedColumns), kPanel)};
  return sizeof(float) * (most.left_size() + most.right_size() + kLineFloats);
}

template <>
void MultiplyTransposed<float>(int64_t m, int64_t k, int64_t n, const float* a, int64_t lda,
                               const float* b, int64_t ldb, float* c, int64_t ldc,
                               bool accumulate, void* scratch) {
  const bool copies = k * n > kCopiedSize;
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
        Left part = {a + row * lda + left, lda, TileRows(block.rows)};
        if (copies) {
          CopyLeft(block, part.data, lda, left_copy);
          CopyRight(block, b + row * ldb + right, ldb, right_copy);
          part = {left_copy, TileRows(block.rows), block.tile_stride()};
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
          const float* panel = b + row * ldb + column;
          int64_t stride = ldb;
          if (copies) {
            panel = right_copy + (column - right) * block.depth;
            stride = RoundUp(columns, kLanes);
          } else if (columns % kLanes != 0) {  // So as not to read past the last row.
            CopyRight({block.depth, 0, columns}, panel, ldb, right_copy);
            panel = right_copy;
            stride = RoundUp(columns, kLanes);
          }
          Finish finish;
          finish.add = accumulate || row > 0;
          MultiplyPanel<true>(block.rows, columns, block.depth, part, panel, stride,
                              c + left * ldc + column, ldc, finish, ahead_of);
        }
      }
    }
  }
}

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
