// The gradient of the kernel.
//
// The forward convolution of a tile is y = A^T [(G g G^T) * (B^T d B)] A, where * is the
// elementwise product. Its transpose gives dg = G^T [(B^T d B) * (A dy A^T)] G, where the
// terms in brackets are first summed over the tiles.

#include <algorithm>
#include <cstdint>

#include "resnet/native/winograd.h"
#include "resnet/native/winograd_blocks.h"
#include "resnet/native/winograd_kernel.h"
#include "resnet/native/winograd_tiles.h"
#include "resnet/native/winograd_transforms.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace winograd {
namespace {

// Per product: 16 registers of sums. With 16 registers in all, 8; they are read as lanes.
constexpr int kRows = std::min(kLanes, kRegisters == 32 ? 8 : 4);
constexpr int64_t kBlockTiles = 64;  // Large: each block reads and writes all sums once.
constexpr int64_t kMaxGroupRows = 128;  // Together with a panel they fit into L2.

// sums[kRows, kLanes * kVectors] += transposed(v) * w, or = if is_first. Rows of v and w are
// tiles; kLanes columns of w are contiguous, the next ones are w_stride further. A block is
// summed before it is added, which makes rounding errors several times smaller than adding
// tile by tile.
//
// Loops over registers are unrolled. Otherwise GCC keeps the sums on the stack before and
// after the loop over the tiles.
template <int kVectors>
void AddProducts(int64_t tiles, const float* v, const float* w, int64_t w_stride,
                 bool is_first, float* sums) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sum[i][j] = Zero();
  }
  for (int64_t tile = 0; tile < tiles; ++tile, v += kLanes, w += kLanes) {
    Vector right[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) right[j] = Load(w + j * w_stride);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vector left = Set(v[i]);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = MulAdd(left, right[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      float* to = sums + i * kPanel + j * kLanes;
      Store(to, is_first ? sum[i][j] : Add(Load(to), sum[i][j]));
    }
  }
}

// The gradient of a transformed kernel, kPanel columns: [kPoints][rows][kPanel].
struct GradientLayout {
  int64_t rows;

  int64_t point_stride() const { return rows * kPanel + kPadding; }
  int64_t size() const { return kPoints * point_stride(); }
};

// A block of transformed tiles.
struct Block {
  int64_t tiles;
  const float* v;
  const float* w;
  bool is_first;  // Whether this block starts the sums.
};

// Adds a block's products to rows of the panel that starts at `column`, and calls
// between(p) after point p.
template <typename Between>
void AddBlock(const Block& block, const BlockLayout& v_layout, const BlockLayout& w_layout,
              const Range& rows, int64_t column, const GradientLayout& layout, float* sums,
              const Between& between) {
  const auto add = w_layout.channels - column > kLanes ? AddProducts<2> : AddProducts<1>;
  for (int p = 0; p < kPoints; ++p) {
    const float* v = block.v + p * v_layout.point_stride();
    const float* w = block.w + p * w_layout.point_stride() +
                     column / kLanes * w_layout.chunk_stride();
    float* u = sums + p * layout.point_stride();
    for (int64_t c = rows.begin; c < rows.end; c += kRows, u += kRows * kPanel) {
      add(block.tiles, v + c / kLanes * v_layout.chunk_stride() + c % kLanes, w,
          w_layout.chunk_stride(), block.is_first, u);
    }
    between(p);
  }
}

// The gradient of a transformed kernel, the sum of `parts`.
struct Sums {
  const float* first;
  int64_t parts, part_stride, point_stride;
};

// dg = G^T U G for one row, where U starts at `offset`.
inline void TransformGradientRow(const Sums& sums, int64_t offset, int row,
                                 KernelBlock& block) {
  Vector half[6][3];
#pragma GCC unroll 6
  for (int j = 0; j < 6; ++j) {
    Vector column[6];
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) {
      const float* u = sums.first + offset + (6 * i + j) * sums.point_stride;
      column[i] = Load(u);
      for (int64_t part = 1; part < sums.parts; ++part) {
        column[i] = Add(column[i], Load(u + part * sums.part_stride));
      }
    }
    TransformKernelGradient(column, half[j]);
  }
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    const Vector line[6] = {half[0][i], half[1][i], half[2][i],
                            half[3][i], half[4][i], half[5][i]};
    Vector t[3];
    TransformKernelGradient(line, t);
#pragma GCC unroll 3
    for (int j = 0; j < 3; ++j) Store(block.taps[3 * i + j][row], t[j]);
  }
}

// The gradient of a [3, 3, in, out] kernel.
struct Gradient {
  float* weights;
  int64_t in, out;
};

// Writes a range of rows and columns; the sums start at the first of them.
void TransformGradientPanel(const Sums& sums, const Range& rows, const Range& columns,
                            const Gradient& gradient) {
  KernelBlock block;
  for (int64_t c = rows.begin; c < rows.end; c += kLanes) {
    const int count = std::min<int64_t>(kLanes, rows.end - c);
    for (int64_t k = columns.begin; k < columns.end; k += kLanes) {
      const int64_t offset = (c - rows.begin) * kPanel + (k - columns.begin);
      for (int i = 0; i < count; ++i) {
        TransformGradientRow(sums, offset + i * kPanel, i, block);
      }
      const Mask mask = FirstLanes(gradient.out - k);
      for (int tap = 0; tap < 9; ++tap) {
        float* to = gradient.weights + (tap * gradient.in + c) * gradient.out + k;
        for (int i = 0; i < count; ++i, to += gradient.out) {
          Store(to, mask, Load(block.taps[tap][i]));
        }
      }
    }
  }
}

// The state that all tasks of a gradient share.
template <typename T>
struct Work {
  Tiles tiles;
  const T* x;
  const T* dy;
  Gradient gradient;

  int64_t num_panels() const { return CeilDivide(gradient.out, kPanel); }
  Range Columns(int64_t panel) const {
    return {panel * kPanel, std::min((panel + 1) * kPanel, gradient.out)};
  }
};

// For many tiles and few weights: each thread sums over its own tiles, a block at a time.
template <typename T>
void GradientByTiles(const Work<T>& work, Context& context) {
  const Tiles& tiles = work.tiles;
  const int64_t in = work.gradient.in, out = work.gradient.out;
  const int64_t tasks = std::min<int64_t>(context.num_threads(), tiles.count);
  const Blocks blocks{tiles.count, tasks * CeilDivide(tiles.count, tasks * kBlockTiles)};
  const BlockLayout v_layout{blocks.max_tiles(), blocks.max_tiles(), in};
  const BlockLayout w_layout{blocks.max_tiles(), blocks.max_tiles(), out};
  const int64_t chunks = v_layout.chunks(), panels = work.num_panels();
  const GradientLayout layout{chunks * kLanes};
  const int64_t sums_size = panels * layout.size();
  const int64_t task_size = v_layout.size() + w_layout.size();
  float* sums = AllocateFor<float>(context, tasks * sums_size);
  float* scratch = AllocateFor<float>(context, tasks * task_size);
  context.Run(tasks, [&](int64_t task) {
    float* v = scratch + task * task_size;
    float* w = v + v_layout.size();
    const Range own = Part(blocks.count, tasks, task);
    for (int64_t b = own.begin; b < own.end; ++b) {
      const Range range = blocks.Tiles(b);
      const Range next = b + 1 < own.end ? blocks.Tiles(b + 1) : Range{0, 0};
      TransformBlock(work.x, tiles, range.begin, range, v_layout, v,
                     TransformInputTile<T>);
      TransformBlock(work.dy, tiles, range.begin, range, w_layout, w,
                     TransformOutputGradientTile<T>);
      for (int64_t panel = 0; panel < panels; ++panel) {
        AddBlock({range.size(), v, w, b == own.begin}, v_layout, w_layout, {0, layout.rows},
                 panel * kPanel, layout, sums + task * sums_size + panel * layout.size(),
                 [&](int p) {
                   const int64_t parts = panels * kPoints, part = panel * kPoints + p;
                   PrefetchTiles(work.x, in, {0, in}, tiles, next, parts, part);
                   PrefetchTiles(work.dy, out, {0, out}, tiles, next, parts, part);
                 });
      }
    }
  });
  context.Run(panels * chunks, [&](int64_t task) {
    const int64_t panel = task / chunks, c = task % chunks * kLanes;
    const Sums total{sums + panel * layout.size() + c * kPanel, tasks, sums_size,
                     layout.point_stride()};
    TransformGradientPanel(total, {c, std::min(c + kLanes, in)}, work.Columns(panel),
                           work.gradient);
  });
}

// For few tiles and many weights: transforms all tiles, then each thread computes the sums
// of some of the weights. The transformed gradient, four times the size of the kernel, is
// never in memory as a whole.
template <typename T>
void GradientByColumns(const Work<T>& work, Context& context) {
  const Tiles& tiles = work.tiles;
  const int64_t in = work.gradient.in, out = work.gradient.out;
  const Blocks blocks{tiles.count, CeilDivide(tiles.count, kBlockTiles)};
  const BlockLayout v_layout{blocks.max_tiles(), blocks.max_tiles(), in};
  const BlockLayout w_layout{blocks.max_tiles(), blocks.max_tiles(), out};
  float* v = AllocateFor<float>(context, blocks.count * v_layout.size());
  float* w = AllocateFor<float>(context, blocks.count * w_layout.size());
  blocks.RunStripes(context, [&](int64_t b, const Range& range) {
    const int64_t first = blocks.Tiles(b).begin;
    TransformBlock(work.x, tiles, first, range, v_layout, v + b * v_layout.size(),
                   TransformInputTile<T>);
    TransformBlock(work.dy, tiles, first, range, w_layout, w + b * w_layout.size(),
                   TransformOutputGradientTile<T>);
  });

  const int64_t threads = context.num_threads(), panels = work.num_panels();
  int64_t group_rows = kMaxGroupRows;  // Fewer if there are too few groups for the threads.
  while (group_rows > kLanes && panels * CeilDivide(in, group_rows) < 3 * threads) {
    group_rows /= 2;
  }
  const int64_t groups = CeilDivide(in, group_rows);
  const GradientLayout layout{group_rows};
  float* scratch = AllocateFor<float>(context, threads * layout.size());
  context.RunOnWorkers(panels * groups, [&](int64_t piece, int64_t worker) {
    float* sums = scratch + worker * layout.size();
    const Range columns = work.Columns(piece / groups);
    const int64_t row = piece % groups * group_rows;
    const Range rows{row, std::min(row + group_rows, in)};
    for (int64_t b = 0; b < blocks.count; ++b) {
      AddBlock({blocks.Tiles(b).size(), v + b * v_layout.size(), w + b * w_layout.size(),
                b == 0},
               v_layout, w_layout, rows, columns.begin, layout, sums, [](int) {});
    }
    TransformGradientPanel({sums, 1, 0, layout.point_stride()}, rows, columns,
                           work.gradient);
  });
}

}  // namespace
}  // namespace winograd

template <typename T>
void ConvKernelGradientWinograd(const ConvShape& shape, const T* x, const T* dy,
                                float* dkernel, Context& context) {
  const winograd::Work<T> work{winograd::MakeTiles(shape, context),
                               x,
                               dy,
                               {dkernel, shape.in_channels, shape.out_channels}};
  if (work.tiles.count == 0) {
    std::fill_n(dkernel, 9 * shape.in_channels * shape.out_channels, 0.0f);
    return;
  }
  // In memory are either the sums of each thread, of the transformed kernel's size, or the
  // transformed images: whichever takes less.
  const int64_t sums = context.num_threads() * shape.in_channels * shape.out_channels;
  if (work.tiles.count * (shape.in_channels + shape.out_channels) > sums) {
    winograd::GradientByTiles(work, context);
  } else {
    winograd::GradientByColumns(work, context);
  }
}

#define INSTANTIATE(T)                                                                     \
  template void ConvKernelGradientWinograd(const ConvShape&, const T*, const T*, float*, \
                                           Context&);
RESNET_FOR_EACH_TYPE(INSTANTIATE)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
