// Convolutions of bfloat16 images with AMX: ConvForwardGemm and its gradients.
//
// No patches are gathered. Images are copied in strips that stay in the L2 cache, with zeros
// around them and rows of one length, so that an output's patch begins a fixed distance after
// that of the output before it: each row of the kernel is one product of matrices, whose
// left operand begins at another place of the same copy. Between two rows of outputs, and
// between two images, some sums are computed in vain. Images of 1x1 kernels need no copy.

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "resnet/native/conv_gemm.h"
#include "resnet/native/gemm_amx_tiles.h"
#include "resnet/native/patches.h"
#include "resnet/native/task_grids.h"
#include "resnet/native/vector.h"
#include "resnet/native/windows.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

using namespace amx;

namespace {

// The sizes of a strip's operands, which leave some of an L2 cache (2 MB) to the others.
constexpr int64_t kStripBytes = 1 << 19;
// The same for the operands of a kernel gradient, or, if there are many sums, which are read
// and written once per strip, for the smaller one.
constexpr int64_t kGradientStripBytes = 3 << 18;
constexpr int64_t kLargeSums = 1 << 17;

// How a window's patches lie in the copy of a strip. A line has the patches of a row of
// outputs, and some beyond its end. Row y of the padded image is in plane y % stride, so
// that a kernel's row finds its pixels in consecutive rows of a plane.
struct Layout {
  explicit Layout(const Window& window)
      : window(window),
        planes(std::min(window.stride, window.rows)),
        line(Pitch(window.columns, window.left_pad, window.width, window.out_width)),
        lines(Pitch(window.rows, window.top_pad, window.height, window.out_height)),
        is_copied(!window.IsPixel()) {}

  // Returns the number of outputs of a line, or of lines of an image, such that the zeros
  // before one line, or image, serve as those after the previous one.
  int64_t Pitch(int64_t reach, int64_t pad, int64_t size, int64_t outputs) const {
    const int64_t end = (outputs - 1) * window.stride + reach;
    const int64_t shared = std::max(pad + size, end - pad);
    return std::max(outputs, CeilDivide(std::min(end, shared), window.stride));
  }

  int64_t pixel_pitch() const { return window.stride * window.channels; }
  int64_t line_size() const { return line * pixel_pitch(); }  // In elements.
  int64_t lines_below() const { return (window.rows - 1) / window.stride; }
  // The lines of a plane that a strip needs. The last patches end in one line more.
  int64_t PlaneLines(int64_t count) const { return count + lines_below() + 1; }
  // What may be read beyond the last line, multiplied by zeros.
  int64_t overrun() const { return window.columns * window.channels + kDepth; }
  // The size of a plane. Its last block may also read more rows than there are.
  int64_t PlaneSize(int64_t count) const {
    return PlaneLines(count) * line_size() + kBlock * pixel_pitch() + overrun();
  }
  // Where the kernel's row i begins in the copy of a strip.
  int64_t RowOffset(int64_t i, int64_t plane_size) const {
    return i % window.stride * plane_size + i / window.stride * line_size();
  }

  // Returns the number of lines per strip, at most `count`: as many as fit, preferably so
  // that blocks of positions are whole.
  int64_t StripLines(int64_t fitting, int64_t count) const {
    if (fitting >= count) return std::max<int64_t>(count, 1);
    const int64_t step = kBlock / std::gcd(kBlock, line);
    return std::max<int64_t>(1, fitting >= step ? fitting / step * step : fitting);
  }

  // Returns where the images begin that a line reads first, for prefetching.
  const char* FirstPixel(const Bf16* images, int64_t batch, int64_t g) const {
    const int64_t y =
        g / lines * window.height + std::min(g % lines * window.stride, window.height);
    return reinterpret_cast<const char*>(images + std::min(y, batch * window.height) *
                                                      window.width * window.channels);
  }

  Window window;
  int64_t planes;
  int64_t line;   // Positions per line.
  int64_t lines;  // Lines per image.
  bool is_copied;
};

// Copies some lines of all images, numbered over all of them, into planes.
void CopyLines(const Layout& layout, const Bf16* images, int64_t batch, int64_t begin,
               int64_t count, int64_t plane_size, Bf16* planes) {
  const Window& window = layout.window;
  const int64_t size = layout.line_size(), channels = window.channels;
  const int64_t before = std::max<int64_t>(window.left_pad, 0) * channels;
  const int64_t skipped = std::max<int64_t>(-window.left_pad, 0) * channels;
  const int64_t inside =
      std::clamp<int64_t>(window.width * channels - skipped, 0, size - before);
  for (int64_t plane = 0; plane < layout.planes; ++plane) {
    Bf16* to = planes + plane * plane_size;
    for (int64_t g = begin; g < begin + layout.PlaneLines(count); ++g, to += size) {
      const int64_t image = g / layout.lines;
      const int64_t y = g % layout.lines * window.stride + plane - window.top_pad;
      if (image >= batch || y < 0 || y >= window.height) {
        std::memset(to, 0, size * sizeof(Bf16));
        continue;
      }
      const Bf16* from = images + (image * window.height + y) * window.width * channels;
      std::memset(to, 0, before * sizeof(Bf16));
      std::memcpy(to + before, from + skipped, inside * sizeof(Bf16));
      std::memset(to + before + inside, 0, (size - before - inside) * sizeof(Bf16));
    }
    std::memset(to, 0, layout.overrun() * sizeof(Bf16));
  }
}

// Writes where the outputs of some lines are stored, in elements, or -1 where there is none.
void FindPlaces(const Layout& layout, const Target& target, int64_t batch, int64_t n,
                int64_t begin, int64_t count, int64_t* places) {
  const Window& window = layout.window;
  const int64_t positions = count * layout.line;
  std::fill_n(places, RoundUp(positions, kBlock), -1);
  for (int64_t g = begin; g < begin + count; ++g, places += layout.line) {
    const int64_t image = g / layout.lines, row = g % layout.lines;
    if (image >= batch || row >= window.out_height) continue;
    const int64_t first =
        target.pixel(window, (image * window.out_height + row) * window.out_width) * n;
    for (int64_t i = 0; i < window.out_width; ++i) places[i] = first + i * target.stride * n;
  }
}

// Packs kBlock columns of a kernel from the given one on, [taps, depth / 2, kBlock, 2].
using PackPanel = std::function<void(int64_t, char*)>;

// y[image, target(position), n] = epilogue(patch(position) * kernel).
void MultiplyPatches(const Window& window, int64_t batch, int64_t n, const Bf16* x,
                     const PackPanel& pack, const Epilogue<Bf16>& epilogue,
                     const Target& target, Bf16* y, Context& context) {
  Layout layout(window);
  layout.is_copied |= window.channels % kDepth != 0;
  const int64_t depth = RoundUp(window.columns * window.channels, kDepth);
  const int64_t pitch = layout.pixel_pitch();
  const int64_t panel_bytes = window.rows * depth * kBlock * sizeof(Bf16);
  char* const packed = AllocateFor<char>(context, CeilDivide(n, kBlock) * panel_bytes);
  context.Run(CeilDivide(n, kBlock),
              [&](int64_t panel) { pack(panel * kBlock, packed + panel * panel_bytes); });

  const int64_t all_lines = batch * layout.lines;
  const Grid grid = MakeGrid(all_lines * layout.line, n, context.num_tasks());
  const int64_t line_bytes = layout.planes * layout.line_size() * sizeof(Bf16);
  const int64_t strip_lines =
      layout.StripLines(kStripBytes / line_bytes, LargestPart(all_lines, grid.rows, 1));
  const int64_t plane_size = layout.is_copied ? layout.PlaneSize(strip_lines) : 0;
  const int64_t most_positions = RoundUp(strip_lines * layout.line, kBlock);
  const int64_t copy_bytes = RoundUp(
      (layout.is_copied ? layout.planes * plane_size : kBlock * pitch) * sizeof(Bf16), kLine);
  const int64_t most_blocks = most_positions / kBlock;
  const int64_t places_bytes =
      RoundUp((most_positions + most_blocks) * sizeof(int64_t), kLine);
  const Pieces memory(context, context.num_threads(),
                      copy_bytes + places_bytes + 2 * kBlockSize * sizeof(float));
  int64_t* const offsets = AllocateFor<int64_t>(context, window.rows);
  for (int64_t i = 0; i < window.rows; ++i) offsets[i] = layout.RowOffset(i, plane_size);
  const Bf16* const end = x + batch * window.image_size();

  context.RunOnWorkers(grid.rows * grid.columns, [&](int64_t task, int64_t worker) {
    Bf16* const copy = reinterpret_cast<Bf16*>(memory.of(worker));
    int64_t* const places = reinterpret_cast<int64_t*>(memory.of(worker) + copy_bytes);
    int64_t* const blocks = places + most_positions;  // Those with a place.
    float* const sums =
        reinterpret_cast<float*>(memory.of(worker) + copy_bytes + places_bytes);
    const Range columns = Part(n, grid.columns, task % grid.columns, kColumnStep);
    const Range own = Part(all_lines, grid.rows, task / grid.columns);
    const Tiles tiles;
    Finisher finisher(epilogue, y, n, sums);
    for (int64_t begin = own.begin; begin < own.end; begin += strip_lines) {
      const int64_t count = std::min(strip_lines, own.end - begin);
      const int64_t positions = count * layout.line;
      finisher.Some(kBlock);  // Its places are written again.
      FindPlaces(layout, target, batch, n, begin, count, places);
      int64_t num_blocks = 0;
      for (int64_t i = 0; i < positions; i += kBlock) {
        if (*std::max_element(places + i, places + i + kBlock) >= 0) blocks[num_blocks++] = i;
      }
      const Bf16* data = x + begin * layout.line_size();
      if (layout.is_copied) {
        CopyLines(layout, x, batch, begin, count, plane_size, copy);
        data = copy;
      }
      FinishStores();
      const int64_t next = begin + count;
      const int64_t steps = CeilDivide(positions, kBlock) *
                            CeilDivide(columns.size(), kBlock) * window.rows * depth / kDepth;
      Fetch fetch{layout.FirstPixel(x, batch, next),
                  layout.FirstPixel(x, batch, std::min(next + strip_lines, own.end)), 0};
      fetch.step = RoundUp(CeilDivide(fetch.end - fetch.next, steps), kLine);
      for (int64_t j = columns.begin; j < columns.end; j += kBlock) {
        for (const int64_t* block = blocks; block < blocks + num_blocks; ++block) {
          const int64_t i = *block;
          Left left{data + i * pitch, pitch, offsets, window.rows, depth};
          if (!layout.is_copied && left.data + kBlock * pitch > end) {
            std::memcpy(copy, left.data, (end - left.data) * sizeof(Bf16));
            FinishStores();
            left.data = copy;
          }
          MultiplyBlock(left, packed + j / kBlock * panel_bytes, fetch, finisher);
          finisher.Take(places + i, j, n - j);
        }
      }
    }
    finisher.Some(kBlock);
    FinishStreams();  // Other threads may read y next.
  });
}

// Packs a panel of the kernel of a phase, rotated and transposed: its rows are
// [columns, out_channels], its columns the input channels from the given one on.
void PackTurned(const ConvShape& shape, const Phase& phase, const float* kernel,
                int64_t depth, int64_t channel, char* to) {
  const Window& window = phase.window;
  const int64_t size = shape.out_channels;
  const int64_t columns = std::min(kBlock, shape.in_channels - channel);
  const int64_t tap_bytes = depth * kBlock * sizeof(Bf16);
  std::memset(to, 0, window.rows * tap_bytes);
  for (int64_t u = 0; u < window.rows; ++u, to += tap_bytes) {
    for (int64_t v = 0; v < window.columns; ++v) {
      const int64_t i = phase.kernel_row + (window.rows - 1 - u) * shape.stride;
      const int64_t j = phase.kernel_column + (window.columns - 1 - v) * shape.stride;
      const float* from =
          kernel + ((i * shape.kernel_size + j) * shape.in_channels + channel) * size;
      if (size % 2 == 0) {
        PackColumns(from, size, size, columns, to + v * size * kBlock * sizeof(Bf16));
        continue;
      }
      for (int64_t c = 0; c < columns; ++c) {  // Pairs are divided among two pixels.
        for (int64_t k = 0; k < size; ++k) {
          const int64_t at = v * size + k;
          reinterpret_cast<Bf16*>(to)[(at / 2 * kBlock + c) * 2 + at % 2].bits =
              RoundToBfloat16(from[c * size + k]);
        }
      }
    }
  }
}

// The operands of a kernel gradient: for each tap, the transposed patches of some positions,
// and the pairs of the outputs' gradients.
//
// The tap of a kernel with few channels is one of its rows; a patch's row is contiguous.
struct GradientLayout : Layout {
  explicit GradientLayout(const Window& window)
      : Layout(window),
        is_narrow(window.channels < kBlock && window.columns > 1),
        size(is_narrow ? window.columns * window.channels : window.channels),
        column_taps(is_narrow ? 1 : window.columns),
        parities(std::min(window.stride, column_taps)) {}

  int64_t taps() const { return window.rows * column_taps; }
  int64_t padded_size() const { return RoundUp(size, kBlock); }
  int64_t matrices() const { return planes * parities; }
  // The largest distance of a tap's positions from those of its matrix.
  int64_t reach() const { return lines_below() * line + (column_taps - 1) / window.stride; }
  // The rows of a transposed matrix for some positions, a multiple of kDepth.
  int64_t MatrixRows(int64_t positions) const { return positions + RoundUp(reach(), kDepth); }
  int64_t MatrixBytes(int64_t positions) const {
    return padded_size() * MatrixRows(positions) * sizeof(Bf16);
  }
  // The bytes of kBlock columns of pairs. A tap's positions lie `shift` behind those of its
  // matrix; instead of the matrix, whose tiles must not cross cache lines, the pairs are
  // shifted: up to kDepth zeros are before and behind them, and there is a second copy for
  // odd distances, whose pairs begin one position earlier.
  bool is_shifted() const { return reach() > 0; }
  int64_t PanelBytes(int64_t positions) const {
    return (positions + (is_shifted() ? 2 * kDepth : 0)) * kBlock * sizeof(Bf16) + 2 * kLine;
  }
  int64_t PanelsBytes(int64_t positions, int64_t columns) const {
    return (1 + is_shifted()) * CeilDivide(columns, kBlock) * PanelBytes(positions);
  }

  // Returns the number of lines per strip, at most `count`, for n columns.
  int64_t GradientStripLines(int64_t n, int64_t count) const {
    const int64_t left = matrices() * padded_size() * sizeof(Bf16);
    const int64_t right = (1 + is_shifted()) * RoundUp(n, kBlock) * sizeof(Bf16);
    const bool are_sums_large = taps() * size * n >= kLargeSums;
    const int64_t positions =
        kGradientStripBytes / (are_sums_large ? std::min(left, right) : left + right);
    return StripLines(CeilDivide(positions, line), count);
  }

  bool is_narrow;
  int64_t size;         // Rows of the kernel, as a matrix, for each tap.
  int64_t column_taps;  // Taps in a row of the kernel.
  int64_t parities;     // Transposed matrices for each plane.
};

// Writes the transposed patches of some lines.
void TransposePatches(const GradientLayout& layout, const Bf16* x, int64_t batch,
                      int64_t begin, int64_t count, int64_t positions, int64_t plane_size,
                      Bf16* copy, char* matrices) {
  int64_t have = count * layout.line;
  const Bf16* data = x + begin * layout.line_size();
  if (layout.is_copied) {
    CopyLines(layout, x, batch, begin, count, plane_size, copy);
    data = copy;
    have = layout.PlaneLines(count) * layout.line;
  }
  for (int64_t matrix = 0; matrix < layout.matrices(); ++matrix) {
    const int64_t plane = matrix / layout.parities, parity = matrix % layout.parities;
    const Bf16* from = data + plane * plane_size + parity * layout.window.channels;
    TransposeRows(from, layout.pixel_pitch(), have, layout.MatrixRows(positions), layout.size,
                  matrices + matrix * layout.MatrixBytes(positions));
  }
}

// Packs the outputs' gradients of some lines, with zeros where there is no output.
void PackGradients(const GradientLayout& layout, const Bf16* dy, int64_t batch, int64_t n,
                   const Range& columns, int64_t begin, int64_t count, int64_t positions,
                   const Bf16* zeros, int64_t* places, char* panels) {
  const Target target = {layout.window.out_height, layout.window.out_width, 0, 0, 1};
  FindPlaces(layout, target, batch, n, begin, count, places);
  const auto row = [&](int64_t i) {
    return i < 0 || i >= positions || places[i] < 0 ? zeros
                                                    : dy + places[i] + columns.begin;
  };
  const int64_t margin = layout.is_shifted() ? kDepth : 0;
  for (int64_t odd = 0; odd <= layout.is_shifted(); ++odd) {
    char* to = panels + odd * layout.PanelsBytes(positions, columns.size()) / 2;
    for (int64_t i = -margin - odd; i < positions + margin - odd; i += 2) {
      PackPair(row(i), row(i + 1), columns.size(), to, layout.PanelBytes(positions));
      to += 2 * kBlock * sizeof(Bf16);
    }
  }
}

// Adds the products of a strip to the sums, or writes them.
void AddProducts(const GradientLayout& layout, int64_t positions, int64_t columns,
                 const char* matrices, const char* panels, bool is_first, float* sums,
                 int64_t stride) {
  const int64_t rows = layout.MatrixRows(positions), line = layout.line;
  const int64_t odd_panels = layout.PanelsBytes(positions, columns) / 2;
  const int64_t kernel_stride = layout.window.stride;
  // The smaller operand is read again for each block of the larger one.
  const int64_t row_blocks = layout.padded_size() / kBlock;
  const int64_t column_blocks = CeilDivide(columns, kBlock), taps = layout.taps();
  const bool by_columns = layout.matrices() * layout.MatrixBytes(positions) <
                          layout.PanelsBytes(positions, columns);
  const int64_t num_blocks = row_blocks * column_blocks * taps;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t block = i / taps;
    const int64_t row = by_columns ? block % row_blocks : block / column_blocks;
    const int64_t column = by_columns ? block / row_blocks : block % column_blocks;
    const int64_t a = i % taps / layout.column_taps, b = i % taps % layout.column_taps;
    const int64_t matrix = a % kernel_stride * layout.parities + b % kernel_stride;
    const int64_t shift = a / kernel_stride * line + b / kernel_stride;
    const char* const left =
        matrices + matrix * layout.MatrixBytes(positions) +
        (row * rows + shift / kDepth * kDepth) * kBlock * sizeof(Bf16);
    const int64_t odd = shift % 2, before = shift % kDepth;
    const char* right = panels + column * layout.PanelBytes(positions);
    if (layout.is_shifted()) {
      right += odd * odd_panels + (kDepth - before + odd) * kBlock * sizeof(Bf16);
    }
    AddBlock(left, right, CeilDivide(positions + before, kDepth), is_first,
             sums + ((i % taps * row_blocks + row) * stride + column) * kBlock, stride);
  }
}

// Adds the sums of all groups, [taps, padded size, padded n], and writes the gradient. The
// sums of the first group may be the gradient itself.
void ReduceSums(const GradientLayout& layout, const float* first, const float* others,
                int64_t num_others, int64_t n, float* dkernel, Context& context) {
  const int64_t padded_n = RoundUp(n, kBlock);
  const int64_t group_size = layout.taps() * layout.padded_size() * padded_n;
  if (first == dkernel && num_others == 0) return;
  context.Run(layout.taps() * layout.size, [&](int64_t row) {
    const int64_t at =
        (row / layout.size * layout.padded_size() + row % layout.size) * padded_n;
    float* const to = dkernel + row * n;
    if (first != dkernel) std::copy_n(first + at, n, to);
    for (int64_t other = 0; other < num_others; ++other) {
      const float* const from = others + other * group_size + at;
      for (int64_t i = 0; i < n; ++i) to[i] += from[i];
    }
  });
}

}  // namespace

template <>
void ConvForwardGemm<Bf16>(const ConvShape& shape, const Bf16* x, const float* kernel,
                           const float* scale, const Epilogue<Bf16>& epilogue, Bf16* y,
                           Context& context) {
  const Window window = MakeWindow(shape);
  const int64_t n = shape.out_channels, run = window.columns * window.channels;
  const int64_t depth = RoundUp(run, kDepth);
  const auto pack = [&](int64_t column, char* to) {
    for (int64_t i = 0; i < window.rows; ++i, to += depth * kBlock * sizeof(Bf16)) {
      PackRows(kernel + i * run * n + column, n, run, depth, n - column,
               scale == nullptr ? nullptr : scale + column, to);
    }
  };
  const Target target = {shape.out_height, shape.out_width, 0, 0, 1};
  MultiplyPatches(window, shape.batch, n, x, pack, epilogue, target, y, context);
}

template <>
void ConvInputGradientGemm<Bf16>(const ConvShape& shape, const Bf16* dy,
                                 const float* kernel, Bf16* dx, Context& context) {
  for (int64_t row = 0; row < std::min(shape.stride, shape.in_height); ++row) {
    for (int64_t column = 0; column < std::min(shape.stride, shape.in_width); ++column) {
      const Phase phase(shape, row, column);
      if (phase.window.patch_size() == 0) {
        ClearPhase(shape, phase, dx, context);
        continue;
      }
      const int64_t depth = RoundUp(phase.window.columns * shape.out_channels, kDepth);
      const auto pack = [&](int64_t channel, char* to) {
        PackTurned(shape, phase, kernel, depth, channel, to);
      };
      MultiplyPatches(phase.window, shape.batch, shape.in_channels, dy, pack, {},
                      phase.target, dx, context);
    }
  }
}

template <>
void ConvKernelGradientGemm<Bf16>(const ConvShape& shape, const Bf16* x, const Bf16* dy,
                                  float* dkernel, Context& context) {
  const GradientLayout layout(MakeWindow(shape));
  const int64_t n = shape.out_channels, padded_n = RoundUp(n, kBlock);
  const int64_t all_lines = shape.batch * layout.lines, taps = layout.taps();
  GradientGrid grid = MakeGradientGrid(all_lines * layout.line, taps * layout.size, n,
                                       1, context.num_tasks());
  grid.places = std::min(grid.places, all_lines);
  const int64_t most_columns = LargestPart(n, grid.columns, kColumnStep);
  const int64_t strip_lines = layout.GradientStripLines(
      most_columns, LargestPart(all_lines, grid.places, 1));
  const int64_t most = RoundUp(strip_lines * layout.line, kDepth);
  const int64_t plane_size = layout.is_copied ? layout.PlaneSize(strip_lines) : 0;
  const int64_t copy_bytes = RoundUp(layout.planes * plane_size * sizeof(Bf16), kLine);
  const int64_t matrices_bytes = layout.matrices() * layout.MatrixBytes(most);
  const int64_t panels_bytes = layout.PanelsBytes(most, most_columns);
  const int64_t places_bytes = RoundUp(most, kBlock) * sizeof(int64_t);
  const Pieces memory(context, context.num_threads(),
                      copy_bytes + matrices_bytes + panels_bytes + places_bytes);
  const int64_t group_size = taps * layout.padded_size() * padded_n;
  const bool is_padded = layout.size % kBlock != 0 || n % kBlock != 0;
  float* const first = is_padded ? AllocateFor<float>(context, group_size) : dkernel;
  float* const others = AllocateFor<float>(context, (grid.places - 1) * group_size);
  Bf16* const zeros = AllocateFor<Bf16>(context, most_columns);
  std::memset(zeros, 0, most_columns * sizeof(Bf16));

  context.RunOnWorkers(grid.places * grid.columns, [&](int64_t task, int64_t worker) {
    Bf16* const copy = reinterpret_cast<Bf16*>(memory.of(worker));
    char* const matrices = memory.of(worker) + copy_bytes;
    char* const panels = matrices + matrices_bytes;
    int64_t* const places = reinterpret_cast<int64_t*>(panels + panels_bytes);
    const Range columns = Part(n, grid.columns, task % grid.columns, kColumnStep);
    const int64_t group = task / grid.columns;
    const Range own = Part(all_lines, grid.places, group);
    float* const sums = group == 0 ? first : others + (group - 1) * group_size;
    const Tiles tiles;
    for (int64_t begin = own.begin; begin < own.end; begin += strip_lines) {
      const int64_t count = std::min(strip_lines, own.end - begin);
      const int64_t positions = RoundUp(count * layout.line, kDepth);
      TransposePatches(layout, x, shape.batch, begin, count, positions, plane_size,
                       copy, matrices);
      PackGradients(layout, dy, shape.batch, n, columns, begin, count, positions, zeros,
                    places, panels);
      FinishStores();
      AddProducts(layout, positions, columns.size(), matrices, panels, begin == own.begin,
                  sums + columns.begin, padded_n);
    }
  });
  ReduceSums(layout, first, others, grid.places - 1, n, dkernel, context);
}

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
