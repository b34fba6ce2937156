// What a convolution reads for each output position, and where the outputs lie.

#ifndef RESNET_NATIVE_WINDOWS_H_
#define RESNET_NATIVE_WINDOWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "resnet/native/context.h"
#include "resnet/native/convolution.h"
#include "resnet/native/rounding.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

// The patch that is read for each output position: `rows` by `columns` pixels, the first
// one in row output_row * stride - top_pad, and likewise for columns.
struct Window {
  int64_t height, width, channels;  // Size of the input images.
  int64_t rows, columns;
  int64_t stride;
  int64_t top_pad, left_pad;
  int64_t out_height, out_width;  // Size of the outputs.

  int64_t patch_size() const { return rows * columns * channels; }
  int64_t places() const { return out_height * out_width; }
  int64_t image_size() const { return height * width * channels; }

  // Returns whether the patches are the pixels themselves.
  bool IsPixel() const {
    return rows == 1 && columns == 1 && stride == 1 && top_pad == 0 && left_pad == 0 &&
           out_height == height && out_width == width;
  }
};

// The output positions of a window in images of `height` by `width` pixels: every
// stride-th row and column, starting at `row` and `column`.
struct Target {
  int64_t height, width;
  int64_t row, column, stride;

  int64_t pixel(const Window& window, int64_t place) const {
    const int64_t line = place / window.out_width;
    const int64_t image = line / window.out_height;
    return (image * height + row + line % window.out_height * stride) * width + column +
           place % window.out_width * stride;
  }
};

// Returns the window of a forward convolution.
inline Window MakeWindow(const ConvShape& shape) {
  return {shape.in_height,   shape.in_width,    shape.in_channels, shape.kernel_size,
          shape.kernel_size, shape.stride,      shape.pad(),       shape.pad(),
          shape.out_height,  shape.out_width};
}

// One phase of the input gradient: the positions whose row and column have the given
// remainders modulo the stride. Only every stride-th row and column of the kernel
// contributes to them, so each phase is a convolution of dy with stride 1 and a smaller
// kernel, rotated by 180 degrees.
struct Phase {
  Phase(const ConvShape& shape, int64_t row, int64_t column)
      : kernel_row((row + shape.pad()) % shape.stride),
        kernel_column((column + shape.pad()) % shape.stride),
        target{shape.in_height, shape.in_width, row, column, shape.stride} {
    window.height = shape.out_height;
    window.width = shape.out_width;
    window.channels = shape.out_channels;
    window.rows = Reach(kernel_row, shape);
    window.columns = Reach(kernel_column, shape);
    window.stride = 1;
    window.top_pad = window.rows - 1 - (row + shape.pad()) / shape.stride;
    window.left_pad = window.columns - 1 - (column + shape.pad()) / shape.stride;
    window.out_height = CeilDivide(shape.in_height - row, shape.stride);
    window.out_width = CeilDivide(shape.in_width - column, shape.stride);
  }

  static int64_t Reach(int64_t first, const ConvShape& shape) {
    return CeilDivide(std::max<int64_t>(shape.kernel_size - first, 0), shape.stride);
  }

  int64_t kernel_row, kernel_column;  // The first ones that contribute.
  Target target;
  Window window;
};

// Writes zeros to the outputs of a phase, to which no kernel row or column contributes.
template <typename T>
void ClearPhase(const ConvShape& shape, const Phase& phase, T* dx, Context& context) {
  const int64_t width = phase.window.out_width;
  context.Run(shape.batch * phase.window.out_height, [&](int64_t line) {
    for (int64_t place = line * width; place < (line + 1) * width; ++place) {
      std::memset(dx + phase.target.pixel(phase.window, place) * shape.in_channels, 0,
                  shape.in_channels * sizeof(T));
    }
  });
}

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_WINDOWS_H_
