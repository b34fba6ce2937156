#include "resnet/native/conv_gemm.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "resnet/native/gemm.h"
#include "resnet/native/patches.h"
#include "resnet/native/task_grids.h"
#include "resnet/native/vector.h"
#include "resnet/native/windows.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace {

// The size of the patches that are gathered at a time, half of an L2 cache, and the least
// number of patches: with fewer rows the packed kernel would be read too often.
constexpr int64_t kPatchBytes = 1 << 19;
constexpr int64_t kLeastPatches = 96;
// The same for a kernel gradient, whose sums are written once per group of patches.
constexpr int64_t kGradientPatchBytes = 1 << 20;
constexpr int64_t kWidestPatch = 1024;

// A kernel packed in parts, each a range of its columns.
template <typename T>
class PackedKernel {
 public:
  // Packs a range of columns into the given memory, like `Pack`.
  using PackPart = std::function<void(const Range&, void*)>;

  PackedKernel(int64_t k, int64_t n, int64_t parts, const PackPart& pack, Context& context)
      : n_(n), parts_(parts),
        memory_(context, parts, PackedBytes<T>(k, LargestPart(n, parts, kColumnStep))) {
    context.Run(CeilDivide(n, kColumnStep), [&](int64_t step) {
      const int64_t begin = step * kColumnStep;
      int64_t part = 0;
      while (begin >= columns(part).end) ++part;
      const Range whole = columns(part);
      const size_t before = PackedBytes<T>(k, begin - whole.begin);
      pack({begin, std::min(begin + kColumnStep, whole.end)}, memory_.of(part) + before);
    });
  }

  Range columns(int64_t part) const { return Part(n_, parts_, part, kColumnStep); }
  const void* of(int64_t part) const { return memory_.of(part); }

 private:
  int64_t n_, parts_;
  Pieces memory_;
};

// y[image, target(position), n] = epilogue(patch(position) * kernel[patch_size, n]).
template <typename T>
void MultiplyPatches(const Window& window, int64_t batch, int64_t n, const T* x,
                     const typename PackedKernel<T>::PackPart& pack,
                     const Epilogue<T>& epilogue, const Target& target, T* y,
                     Context& context) {
  const int64_t k = window.patch_size();
  const int64_t places = batch * window.places();
  const bool in_place = window.IsPixel();
  const bool is_dense = target.stride == 1;
  const Grid grid = MakeGrid(places, n, context.num_tasks());
  const PackedKernel<T> kernel(k, n, grid.columns, pack, context);

  const int64_t most_columns = LargestPart(n, grid.columns, kColumnStep);
  int64_t most_rows = LargestPart(places, grid.rows, 1);
  if (!in_place || !is_dense) {
    const int64_t size = std::max(in_place ? 0 : k, is_dense ? 0 : most_columns);
    const int64_t fitting =
        std::max<int64_t>(kPatchBytes / (size * sizeof(T)), kLeastPatches);
    most_rows = CeilDivide(most_rows, CeilDivide(most_rows, fitting));
  }
  const int64_t patch_bytes = RoundUp(in_place ? 0 : most_rows * k * sizeof(T), kLine);
  const int64_t result_bytes =
      RoundUp(is_dense ? 0 : most_rows * most_columns * sizeof(T), kLine);
  const int64_t tasks = grid.rows * grid.columns;
  const Pieces memory(
      context, context.num_threads(),
      patch_bytes + result_bytes + MultiplyScratchBytes<T>(most_rows, most_columns, k));

  context.RunOnWorkers(tasks, [&](int64_t task, int64_t worker) {
    T* const patches = reinterpret_cast<T*>(memory.of(worker));
    T* const results = reinterpret_cast<T*>(memory.of(worker) + patch_bytes);
    void* const scratch = memory.of(worker) + patch_bytes + result_bytes;
    const int64_t part = task % grid.columns;
    const Range columns = kernel.columns(part);
    const Range rows = Part(places, grid.rows, task / grid.columns);
    for (int64_t begin = rows.begin; begin < rows.end; begin += most_rows) {
      const int64_t count = std::min(most_rows, rows.end - begin);
      const T* left = x + begin * k;
      if (!in_place) {
        GatherPatches(window, x, begin, count, patches);
        left = patches;
      }
      const int64_t offset = begin * n + columns.begin;
      Epilogue<T> moved = epilogue;
      if (moved.bias != nullptr) moved.bias += columns.begin;
      if (moved.residual != nullptr) moved.residual += offset;
      T* const out = is_dense ? y + offset : results;
      Multiply<T>(count, columns.size(), k, left, k, kernel.of(part), out,
                  is_dense ? n : columns.size(), moved, scratch);
      if (is_dense) continue;
      for (int64_t j = 0; j < count; ++j) {
        CopyRun(results + j * columns.size(), columns.size() * sizeof(T),
                y + target.pixel(window, begin + j) * n + columns.begin);
      }
    }
  });
}

// Packs the kernel of a phase, rotated and transposed, for a range of input channels:
// [rows, columns, out_channels, channels]. `turned` is scratch memory of that size.
template <typename T>
void PackTurned(const ConvShape& shape, const Phase& phase, const Range& channels,
                const float* kernel, float* turned, void* packed) {
  const Window& window = phase.window;
  const int64_t size = shape.out_channels;
  const auto row_at = [&](int64_t u, int64_t v, int64_t channel) {
    const int64_t i = phase.kernel_row + u * shape.stride;
    const int64_t j = phase.kernel_column + v * shape.stride;
    return kernel + ((i * shape.kernel_size + j) * shape.in_channels + channel) * size;
  };
  if (window.rows * window.columns == 1) {
    Pack<T>(row_at(0, 0, channels.begin), 1, size, size, channels.size(), nullptr, packed);
    return;
  }
  turned += channels.begin * window.patch_size();
  float* to = turned;
  for (int64_t c = channels.begin; c < channels.end; ++c) {
    for (int64_t u = window.rows - 1; u >= 0; --u) {
      for (int64_t v = window.columns - 1; v >= 0; --v, to += size) {
        CopyRun(row_at(u, v, c), size * sizeof(float), to);
      }
    }
  }
  Pack<T>(turned, 1, window.patch_size(), window.patch_size(), channels.size(), nullptr,
          packed);
}

// Divides a window into parts whose patches are narrow enough: rows, or single pixels.
std::vector<Window> DivideWindow(const Window& window) {
  Window part = window;
  if (window.patch_size() > kWidestPatch) part.rows = 1;
  if (part.patch_size() > kWidestPatch) part.columns = 1;
  std::vector<Window> parts;
  for (int64_t i = 0; i < window.rows; i += part.rows) {
    for (int64_t j = 0; j < window.columns; j += part.columns) {
      parts.push_back(part);
      parts.back().top_pad -= i;
      parts.back().left_pad -= j;
    }
  }
  return parts;
}

// Adds the partial sums to dkernel.
void AddSums(const float* sums, int64_t num_sums, int64_t size, float* dkernel,
             Context& context) {
  constexpr int64_t kLargest = 1 << 12;  // Stays in the L1 cache while it is added to.
  constexpr int64_t kSmallest = 1 << 9;  // Also a small kernel occupies many threads.
  const int64_t parts = std::max(CeilDivide(size, kLargest),
                                 std::min(CeilDivide(size, kSmallest), context.num_tasks()));
  context.Run(parts, [&](int64_t part) {
    const Range range = Part(size, parts, part, kLine / sizeof(float));
    for (int64_t sum = 0; sum < num_sums; ++sum) {
      for (int64_t i = range.begin; i < range.end; ++i) dkernel[i] += sums[sum * size + i];
    }
  });
}

}  // namespace

template <typename T>
void ConvForwardGemm(const ConvShape& shape, const T* x, const float* kernel,
                     const float* scale, const Epilogue<T>& epilogue, T* y,
                     Context& context) {
  const Window window = MakeWindow(shape);
  const int64_t n = shape.out_channels;
  const auto pack = [&](const Range& columns, void* packed) {
    Pack<T>(kernel + columns.begin, n, 1, window.patch_size(), columns.size(),
            scale == nullptr ? nullptr : scale + columns.begin, packed);
  };
  const Target target = {shape.out_height, shape.out_width, 0, 0, 1};
  MultiplyPatches<T>(window, shape.batch, n, x, pack, epilogue, target, y, context);
}

template <typename T>
void ConvInputGradientGemm(const ConvShape& shape, const T* dy, const float* kernel, T* dx,
                           Context& context) {
  for (int64_t row = 0; row < std::min(shape.stride, shape.in_height); ++row) {
    for (int64_t column = 0; column < std::min(shape.stride, shape.in_width); ++column) {
      const Phase phase(shape, row, column);
      const int64_t k = phase.window.patch_size();
      if (k == 0) {
        ClearPhase(shape, phase, dx, context);
        continue;
      }
      float* turned = AllocateFor<float>(context, k * shape.in_channels);
      const auto pack = [&](const Range& channels, void* packed) {
        PackTurned<T>(shape, phase, channels, kernel, turned, packed);
      };
      MultiplyPatches<T>(phase.window, shape.batch, shape.in_channels, dy, pack,
                         Epilogue<T>(), phase.target, dx, context);
    }
  }
}

template <typename T>
void ConvKernelGradientGemm(const ConvShape& shape, const T* x, const T* dy, float* dkernel,
                            Context& context) {
  const Window window = MakeWindow(shape);
  const bool in_place = window.IsPixel();
  const int64_t n = shape.out_channels;
  const int64_t k = window.patch_size();
  const int64_t places = shape.batch * window.places();
  // Pixels are divided by channels.
  const std::vector<Window> windows = DivideWindow(window);
  const int64_t most_parts = in_place ? CeilDivide(k, kColumnStep) : windows.size();
  const GradientGrid grid =
      MakeGradientGrid(places, k, n, most_parts, context.num_tasks());

  const int64_t patch_size = windows[0].patch_size();
  int64_t most_rows = LargestPart(places, grid.places, 1);
  if (!in_place) {
    const int64_t fitting =
        std::max<int64_t>(kGradientPatchBytes / (patch_size * sizeof(T)), kLeastPatches);
    most_rows = CeilDivide(most_rows, CeilDivide(most_rows, fitting));
  }
  const int64_t patch_bytes =
      RoundUp(in_place ? 0 : most_rows * patch_size * sizeof(T), kLine);
  const int64_t tasks = grid.places * grid.parts * grid.columns;
  const Pieces memory(
      context, context.num_threads(),
      patch_bytes + MultiplyTransposedScratchBytes<T>(most_rows, patch_size, n));
  float* const sums = AllocateFor<float>(context, (grid.places - 1) * k * n);

  context.RunOnWorkers(tasks, [&](int64_t task, int64_t worker) {
    T* const patches = reinterpret_cast<T*>(memory.of(worker));
    void* const scratch = memory.of(worker) + patch_bytes;
    const Range columns = Part(n, grid.columns, task % grid.columns, kColumnStep);
    const int64_t part = task / grid.columns % grid.parts;
    const int64_t group = task / grid.columns / grid.parts;
    const Range rows = Part(places, grid.places, group);
    float* const sum = (group == 0 ? dkernel : sums + (group - 1) * k * n) + columns.begin;
    const T* const right = dy + rows.begin * n + columns.begin;
    if (in_place) {
      const Range channels = Part(k, grid.parts, part, kColumnStep);
      MultiplyTransposed<T>(rows.size(), channels.size(), columns.size(),
                            x + rows.begin * k + channels.begin, k, right, n,
                            sum + channels.begin * n, n, false, scratch);
      return;
    }
    const Range mine = Part(windows.size(), grid.parts, part);
    for (int64_t i = 0; i < rows.size(); i += most_rows) {
      const int64_t count = std::min(most_rows, rows.size() - i);
      for (int64_t w = mine.begin; w < mine.end; ++w) {
        GatherPatches(windows[w], x, rows.begin + i, count, patches);
        float* const out = sum + w * patch_size * n;
        MultiplyTransposed<T>(count, patch_size, columns.size(), patches, patch_size,
                              right + i * n, n, out, n, i > 0, scratch);
      }
    }
  });
  AddSums(sums, grid.places - 1, k * n, dkernel, context);
}

#define INSTANTIATE(T)                                                                    \
  template void ConvForwardGemm<T>(const ConvShape&, const T*, const float*,              \
                                   const float*, const Epilogue<T>&, T*, Context&);       \
  template void ConvInputGradientGemm<T>(const ConvShape&, const T*, const float*, T*,    \
                                         Context&);                                       \
  template void ConvKernelGradientGemm<T>(const ConvShape&, const T*, const T*, float*,   \
                                          Context&);
RESNET_FOR_EACH_TYPE(INSTANTIATE)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
