// The forward convolution and the gradient of its inputs, which is a convolution with the
// kernel rotated by 180 degrees.

#include "resnet/native/winograd.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "resnet/native/winograd_blocks.h"
#include "resnet/native/winograd_kernel.h"
#include "resnet/native/winograd_tiles.h"
#include "resnet/native/winograd_transforms.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace winograd {
namespace {

// Tiles per product: of 32 registers, 28 hold sums and two the kernel; of 16, 12 and two.
constexpr int kMaxRows = kRegisters == 32 ? 14 : 6;
// Of 64 channels they fit into the L2 cache.
constexpr int64_t kBlockTiles = kRegisters == 32 ? 28 : 30;
// Where each block reads the kernel from L3.
constexpr int64_t kLongBlockTiles = kRegisters == 32 ? 64 : 66;

// The products of a block of tiles with a panel: [kPoints][tiles][kPanel].
struct ProductLayout {
  int64_t tiles;

  int64_t point_stride() const { return tiles * kPanel + kPadding; }
  int64_t size() const { return kPoints * point_stride(); }
};

// m[kRows, kLanes * kVectors] = v * u. Rows of v are tiles: kLanes channels of each are
// contiguous, the next ones are v_stride further.
//
// Loops over registers are unrolled. Otherwise GCC keeps the sums on the stack before and
// after the loop over the channels.
template <int kRows, int kVectors>
void MultiplyRows(const float* v, int64_t v_stride, const float* u, int64_t channels,
                  float* m) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sum[i][j] = Zero();
  }
  for (int64_t c = 0; c < channels; c += kLanes, v += v_stride) {
    const int64_t lanes = std::min<int64_t>(kLanes, channels - c);
    for (int64_t lane = 0; lane < lanes; ++lane, u += kPanel) {
      Vector right[kVectors];
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) right[j] = Load(u + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Vector left = Set(v[i * kLanes + lane]);
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) {
          sum[i][j] = MulAdd(left, right[j], sum[i][j]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) Store(m + i * kPanel + j * kLanes, sum[i][j]);
  }
}

template <int kVectors, int kRows = kMaxRows>
void MultiplyUpToMaxRows(int64_t rows, const float* v, int64_t v_stride, const float* u,
                         int64_t channels, float* m) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return MultiplyUpToMaxRows<kVectors, kRows - 1>(rows, v, v_stride, u, channels, m);
    }
  }
  MultiplyRows<kRows, kVectors>(v, v_stride, u, channels, m);
}

// Multiplies the tiles of a block with a panel of `columns` columns at all points, and
// calls between(p) after point p.
template <typename Between>
void MultiplyPanel(int64_t tiles, const float* block, const BlockLayout& layout,
                   const float* panel, int64_t columns, float* products,
                   const Between& between) {
  const PanelLayout panel_layout{layout.channels};
  const ProductLayout product_layout{layout.tiles};
  const auto multiply = columns > kLanes ? MultiplyUpToMaxRows<2> : MultiplyUpToMaxRows<1>;
  for (int p = 0; p < kPoints; ++p) {
    const float* v = block + p * layout.point_stride();
    const float* u = panel + p * panel_layout.point_stride();
    float* m = products + p * product_layout.point_stride();
    for (int64_t tile = 0; tile < tiles; tile += layout.group_tiles) {
      multiply(std::min(layout.group_tiles, tiles - tile), v + layout.TileOffset(tile),
               layout.chunk_stride(), u, layout.channels, m + tile * kPanel);
    }
    between(p);
  }
}

// The state that all tasks of a convolution share.
template <typename T>
struct Work {
  Tiles tiles;
  const T* x;
  Kernel kernel;
  T* y;
  Epilogue<T> epilogue;

  int64_t num_panels() const { return CeilDivide(kernel.out, kPanel); }
  Range Columns(int64_t panel) const {
    return {panel * kPanel, std::min((panel + 1) * kPanel, kernel.out)};
  }
};

// Writes a range of columns (channels) of the output's tiles.
template <typename T>
void TransformOutputPanel(const Work<T>& work, const float* products,
                          const ProductLayout& layout, const Range& range,
                          const Range& columns) {
  const Epilogue<T>& epilogue = work.epilogue;
  for (int64_t tile = range.begin; tile < range.end; ++tile) {
    const float* m = products + (tile - range.begin) * kPanel;
    for (int64_t k = columns.begin; k < columns.end; k += kLanes, m += kLanes) {
      const float* bias = epilogue.bias ? epilogue.bias + k : nullptr;
      const T* residual = epilogue.residual ? epilogue.residual + k : nullptr;
      const Patch<T> y(work.y, work.kernel.out, k, work.tiles.row(tile),
                       work.tiles.column(tile));
      const auto transform =
          y.is_whole ? TransformOutputTile<T, false> : TransformOutputTile<T, true>;
      transform(m, layout.point_stride(), y, bias, residual, epilogue.relu);
    }
  }
}

// Computes a range of columns of a block of tiles, and calls between(p) 36 times
// meanwhile.
template <typename T, typename Between>
void ComputePanel(const Work<T>& work, const float* block, const BlockLayout& layout,
                  const Range& range, const float* panel, const Range& columns,
                  float* products, const Between& between) {
  MultiplyPanel(range.size(), block, layout, panel, columns.size(), products, [&](int p) {
    PrefetchTiles(work.y, work.kernel.out, columns, work.tiles, range, kPoints, p);
    between(p);
  });
  TransformOutputPanel(work, products, {layout.tiles}, range, columns);
}

BlockLayout MakeBlockLayout(int64_t tiles, int64_t channels) {
  return {tiles, CeilDivide(tiles, CeilDivide(tiles, kMaxRows)), channels};
}

// For many tiles and few weights: transforms the whole kernel, then each thread processes
// some of the tiles, a block at a time.
template <typename T>
void ConvolveByTiles(const Work<T>& work, Context& context) {
  const Kernel& kernel = work.kernel;
  const Tiles& tiles = work.tiles;
  const int64_t panels = work.num_panels(), chunks = CeilDivide(kernel.in, kLanes);
  const int64_t panel_size = PanelLayout{kernel.in}.size();
  float* u = AllocateFor<float>(context, panels * panel_size);
  context.Run(panels * chunks, [&](int64_t task) {
    const int64_t panel = task / chunks, c = task % chunks * kLanes;
    TransformKernelPanel(kernel, {c, std::min(c + kLanes, kernel.in)}, work.Columns(panel),
                         u + panel * panel_size + c * kPanel);
  });

  const int64_t threads = std::min<int64_t>(context.num_threads(), tiles.count);
  const Blocks blocks{tiles.count, threads * CeilDivide(tiles.count, threads * kBlockTiles)};
  const BlockLayout layout = MakeBlockLayout(blocks.max_tiles(), kernel.in);
  const int64_t worker_size = layout.size() + ProductLayout{layout.tiles}.size();
  float* scratch = AllocateFor<float>(context, threads * worker_size);
  const int64_t tasks = std::min(context.num_tasks(), blocks.count);
  context.RunOnWorkers(tasks, [&](int64_t task, int64_t worker) {
    float* v = scratch + worker * worker_size;
    float* m = v + layout.size();
    const Range own = Part(blocks.count, tasks, task);
    for (int64_t b = own.begin; b < own.end; ++b) {
      const Range range = blocks.Tiles(b);
      const Range next = b + 1 < own.end ? blocks.Tiles(b + 1) : Range{0, 0};
      TransformBlock(work.x, tiles, range.begin, range, layout, v,
                     TransformInputTile<T>);
      for (int64_t panel = 0; panel < panels; ++panel) {
        ComputePanel(work, v, layout, range, u + panel * panel_size, work.Columns(panel), m,
                     [&](int p) {
                       PrefetchTiles(work.x, kernel.in, {0, kernel.in}, tiles, next,
                                     panels * kPoints, panel * kPoints + p);
                     });
      }
    }
  });
}

// Returns the number of parts to divide all tiles into, so that the pairs of a panel and a
// part take the threads the least time.
int64_t PartsOfTiles(int64_t tiles, int64_t panels, int64_t threads) {
  // Transforming the kernel for a part takes as long as this many tiles, about.
  constexpr int64_t kTransformTiles = 4;
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t parts = 1; parts <= CeilDivide(tiles, kMaxRows); ++parts) {
    const int64_t cost =
        CeilDivide(panels * parts, threads) * (CeilDivide(tiles, parts) + kTransformTiles);
    if (cost < least) {
      least = cost;
      best = parts;
    }
  }
  return best;
}

// For few tiles and many weights: transforms all tiles, then each thread processes some
// columns of the kernel, for all tiles if there are as many columns as threads need. The
// transformed kernel, four times the size of the kernel, is never in memory as a whole.
template <typename T>
void ConvolveByColumns(const Work<T>& work, Context& context) {
  const Kernel& kernel = work.kernel;
  const Tiles& tiles = work.tiles;
  const int64_t parts =
      PartsOfTiles(tiles.count, work.num_panels(), context.num_threads());
  const Blocks blocks{
      tiles.count, parts * CeilDivide(CeilDivide(tiles.count, parts), kLongBlockTiles)};
  const BlockLayout layout = MakeBlockLayout(blocks.max_tiles(), kernel.in);
  float* v = AllocateFor<float>(context, blocks.count * layout.size());
  blocks.RunStripes(context, [&](int64_t b, const Range& range) {
    TransformBlock(work.x, tiles, blocks.Tiles(b).begin, range, layout,
                   v + b * layout.size(), TransformInputTile<T>);
  });

  const int64_t panel_size = PanelLayout{kernel.in}.size();
  const int64_t worker_size = panel_size + ProductLayout{layout.tiles}.size();
  float* scratch = AllocateFor<float>(context, context.num_threads() * worker_size);
  context.RunOnWorkers(work.num_panels() * parts, [&](int64_t task, int64_t worker) {
    float* u = scratch + worker * worker_size;
    float* m = u + panel_size;
    const Range columns = work.Columns(task / parts);
    TransformKernelPanel(kernel, {0, kernel.in}, columns, u);
    const Range own = Part(blocks.count, parts, task % parts);
    for (int64_t b = own.begin; b < own.end; ++b) {
      ComputePanel(work, v + b * layout.size(), layout, blocks.Tiles(b), u, columns, m,
                   [](int) {});
    }
  });
}

template <typename T>
void Convolve(const Work<T>& work, Context& context) {
  if (work.tiles.count == 0) return;
  // The larger one of the transformed inputs and the transformed kernel should not be in
  // memory as a whole; tiles divide better among threads.
  if (3 * work.tiles.count >= 2 * work.kernel.out) {
    ConvolveByTiles(work, context);
  } else {
    ConvolveByColumns(work, context);
  }
}

}  // namespace
}  // namespace winograd

template <typename T>
void ConvForwardWinograd(const ConvShape& shape, const T* x, const float* kernel,
                         const float* scale, const Epilogue<T>& epilogue, T* y,
                         Context& context) {
  winograd::Convolve<T>({winograd::MakeTiles(shape, context),
                         x,
                         {kernel, scale, shape.in_channels, shape.out_channels, false},
                         y,
                         epilogue},
                        context);
}

template <typename T>
void ConvInputGradientWinograd(const ConvShape& shape, const T* dy, const float* kernel,
                               T* dx, Context& context) {
  winograd::Convolve<T>({winograd::MakeTiles(shape, context),
                         dy,
                         {kernel, nullptr, shape.out_channels, shape.in_channels, true},
                         dx,
                         {}},
                        context);
}

#define INSTANTIATE(T)                                                                   \
  template void ConvForwardWinograd<T>(const ConvShape&, const T*, const float*,         \
                                       const float*, const Epilogue<T>&, T*, Context&);  \
  template void ConvInputGradientWinograd<T>(const ConvShape&, const T*, const float*,   \
                                             T*, Context&);
RESNET_FOR_EACH_TYPE(INSTANTIATE)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
