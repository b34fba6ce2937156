// The tiles of matrix products in float32, shared by Multiply and MultiplyTransposed.
//
// Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM
// TOMS 34, 2008). A tile of c stays in registers while it is summed, and blocks of the
// operands stay in the L2 cache. Each tile prefetches a part of the next block from
// memory: in a network's first layers, whose products have a short inner dimension,
// waiting for memory would take a third of the time.

#ifndef RESNET_NATIVE_GEMM_FMA_TILES_H_
#define RESNET_NATIVE_GEMM_FMA_TILES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "resnet/native/rounding.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace fma {

// Tile size: 24 of 32 registers hold sums, or 12 of 16. Among the tiles with as many sums
// these read the fewest values: 44 for 384 products, or 22 for 96. With four lanes, four
// vectors are a cache line.
constexpr int kVectors = kLanes == 4 ? 4 : 2;
constexpr int kRows = (kRegisters == 32 ? 24 : 12) / kVectors;
constexpr int kPanel = kVectors * kLanes;  // Columns of b that are packed together.
constexpr int kLineFloats = 16;  // Of a cache line.
constexpr int kVectorsOfLine = kLineFloats / kLanes;

// Results of more elements than this are computed from copies of the blocks, which tiles
// read from consecutive addresses: rows of a and b are often a multiple of 4 KB apart, and
// compete for a few lines of the L1 cache. With AVX-512, copies for small results would
// cost more than that.
constexpr int64_t kCopiedSize = kRegisters == 32 ? 128 * 1024 : 0;
constexpr int64_t kStepsAhead = 8;  // Prefetch distance from the L2 cache, without copies.

// Returns the number of parts of size at most `limit` in `total`.
inline int64_t Parts(int64_t total, int64_t limit) {
  return std::max<int64_t>(1, CeilDivide(total, limit));
}

// Returns the size of nearly equal parts of `total`, a multiple of `step`.
inline int64_t EvenPart(int64_t total, int64_t limit, int64_t step) {
  const int64_t parts = Parts(total, limit);
  return RoundUp(std::max<int64_t>(1, CeilDivide(total, parts)), step);
}

// What is done with the sums of a tile before they are stored as numbers of type T.
template <typename T>
struct Finish {
  const float* add = nullptr;  // Sums of another block, `add_stride` elements apart.
  int64_t add_stride = 0;
  bool relu = false;
  bool stream = false;  // Stores float32 without reading c into the cache.
  const float* bias = nullptr;
  const T* residual = nullptr;  // Its rows are as far apart as those of c.
};

// The memory that is prefetched into the L2 cache while a tile of some depth is computed:
// `depth` elements of each of `rows` rows, or a cache line of each of `depth` rows if it is
// transposed.
struct Ahead {
  template <typename T>
  Ahead(const T* first, int64_t stride, int64_t rows)
      : at(reinterpret_cast<const char*>(first)),
        stride(stride * sizeof(T)),
        rows(rows),
        element(sizeof(T)) {}

  const char* at;
  int64_t stride;  // Bytes from row to row.
  int64_t rows;
  int64_t element;  // Bytes of an element.
};

// Stores a tile of sums, row by row: non-temporal stores fill one line after the other. If
// it is partial, only some lanes of the last vector of each row are valid.
//
// Each option is a loop over the whole tile. In one loop for all of them, the compiler
// would test each option again for each vector, since a store might have changed it.
template <bool kPartial, int R, int V, typename T>
[[gnu::always_inline]] inline void FinishTile(Vector (&sum)[R][V], Mask lanes,
                                              const Finish<T>& finish, T* c, int64_t ldc) {
  const auto load = [=](const auto* from, int v) {
    if (kPartial && v == V - 1) return Load(from + v * kLanes, lanes);
    return Load(from + v * kLanes);
  };
  if (finish.add != nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[r][v] = Add(load(finish.add + r * finish.add_stride, v), sum[r][v]);
      }
    }
  }
  if (finish.bias != nullptr) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Vector bias = load(finish.bias, v);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][v] = Add(sum[r][v], bias);
    }
  }
  if (finish.residual != nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[r][v] = Add(sum[r][v], load(finish.residual + r * ldc, v));
      }
    }
  }
  if (finish.relu) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[r][v] = Max(Zero(), sum[r][v]);  // This order of operands keeps NaN.
      }
    }
  }
  if constexpr (!kPartial && std::is_same_v<T, float>) {
    if (finish.stream) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r, c += ldc) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) Stream(c + v * kLanes, sum[r][v]);
      }
      return;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r, c += ldc) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      if (kPartial && v == V - 1) {
        Store(c + v * kLanes, lanes, sum[r][v]);
      } else {
        Store(c + v * kLanes, sum[r][v]);
      }
    }
  }
}

// Computes a tile of c, a[R, depth] * b[depth, V * kLanes]. Element (r, p) of a is at
// a[r * lda + p], or at a[p * lda + r] if it is transposed. In the last vector only the
// first `last_lanes` lanes are valid.
template <int R, int V, bool kTransposed, typename T>
void Tile(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, T* c,
          int64_t ldc, int64_t last_lanes, const Finish<T>& finish, Ahead ahead) {
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
        __builtin_prefetch(ahead.at + r * ahead.stride + p * ahead.element, 0, 2);
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
  if (last_lanes < kLanes) {  // Masked stores are slow.
    FinishTile<true>(sum, FirstLanes(last_lanes), finish, c, ldc);
  } else {
    FinishTile<false>(sum, Mask(), finish, c, ldc);
  }
}

template <typename T>
using TileFunction = void (*)(int64_t, const float*, int64_t, const float*, int64_t, T*,
                              int64_t, int64_t, const Finish<T>&, Ahead);
template <typename T>
using TileTable = std::array<TileFunction<T>, kRows * kVectors>;

template <bool kTransposed, typename T, size_t... I>
constexpr TileTable<T> MakeTable(std::index_sequence<I...>) {
  return {Tile<I / kVectors + 1, I % kVectors + 1, kTransposed, T>...};
}

// The function for a tile of r rows and v vectors is at (r - 1) * kVectors + v - 1.
template <bool kTransposed, typename T>
constexpr TileTable<T> kTiles =
    MakeTable<kTransposed, T>(std::make_index_sequence<kRows * kVectors>());

// Returns the number of rows per tile. A last tile of one or two rows would be bound by
// the latency of its additions.
inline int64_t TileRows(int64_t rows) { return EvenPart(rows, kRows, 1); }

// The left operand of some tiles: those of tile i start at data + i * tile_stride.
struct Left {
  const float* data;
  int64_t lda, tile_stride;
};

// Computes a[rows, depth] * b[depth, columns] for c, with at most kPanel columns.
// ahead_of(i) returns what to prefetch with tile i.
template <bool kTransposed, typename T, typename AheadOf>
void MultiplyPanel(int64_t rows, int64_t columns, int64_t depth, Left a, const float* b,
                   int64_t ldb, T* c, int64_t ldc, Finish<T> finish,
                   const AheadOf& ahead_of) {
  const int vectors = static_cast<int>(CeilDivide(columns, kLanes));
  const int64_t last_lanes = columns - (vectors - 1) * kLanes;
  const int64_t step = TileRows(rows);
  int64_t tile = 0;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    kTiles<kTransposed, T>[(count - 1) * kVectors + vectors - 1](
        depth, a.data, a.lda, b, ldb, c, ldc, last_lanes, finish, ahead_of(tile++));
    a.data += a.tile_stride;
    c += step * ldc;
    if (finish.add != nullptr) finish.add += step * finish.add_stride;
    if (finish.residual != nullptr) finish.residual += step * ldc;
  }
}

}  // namespace fma
}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_GEMM_FMA_TILES_H_
