// The transformed kernel of Winograd's algorithm, in the layout that its products read.

#ifndef RESNET_NATIVE_WINOGRAD_KERNEL_H_
#define RESNET_NATIVE_WINOGRAD_KERNEL_H_

#include <algorithm>
#include <cstdint>

#include "resnet/native/winograd_blocks.h"
#include "resnet/native/winograd_transforms.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace winograd {

constexpr int64_t kPanel = 2 * kLanes;  // Contiguous columns of the transformed kernel.

// A 3x3 kernel from `in` to `out` channels.
struct Kernel {
  const float* weights;
  const float* scale;  // The factor of each column, or nullptr; not of a gradient.
  int64_t in, out;
  // If true, the weights are those of the forward convolution, [3, 3, out, in], and are
  // rotated by 180 degrees, because this convolution computes its input gradient.
  bool is_gradient;
};

// kPanel columns at all points: [kPoints][in channels][kPanel].
struct PanelLayout {
  int64_t in;

  int64_t point_stride() const { return in * kPanel + kPadding; }
  int64_t size() const { return kPoints * point_stride(); }
};

// kLanes rows and columns of the kernel at each of its nine positions.
struct KernelBlock {
  alignas(64) float taps[9][kLanes][kLanes];
};

// Copies rows from c on and columns from k on, with zeros past the ends. Without a copy the
// transform would suffer cache conflicts, because the kernel's rows are powers of two
// apart.
inline void CopyKernel(const Kernel& kernel, int64_t c, int64_t k, KernelBlock& block) {
  const int64_t tap_stride = kernel.in * kernel.out;
  for (int tap = 0; tap < 9; ++tap) {
    Vector lines[kLanes];
    if (kernel.is_gradient) {
      const float* from = kernel.weights + (8 - tap) * tap_stride + k * kernel.in + c;
      const Mask mask = FirstLanes(kernel.in - c);
      for (int i = 0; i < kLanes; ++i, from += kernel.in) {
        lines[i] = k + i < kernel.out ? Load(from, mask) : Zero();
      }
      Transpose(lines);
    } else {
      const float* from = kernel.weights + tap * tap_stride + c * kernel.out + k;
      const Mask mask = FirstLanes(kernel.out - k);
      const Vector scale = kernel.scale ? Load(kernel.scale + k, mask) : Set(1.0f);
      for (int i = 0; i < kLanes; ++i, from += kernel.out) {
        lines[i] = c + i < kernel.in ? Mul(Load(from, mask), scale) : Zero();
      }
    }
    for (int i = 0; i < kLanes; ++i) Store(block.taps[tap][i], lines[i]);
  }
}

// U = G g G^T for one row: element (i, j) goes to u + (6 * i + j) * stride.
inline void TransformKernelRow(const KernelBlock& block, int row, float* u, int64_t stride) {
  Vector half[3][6];
  for (int j = 0; j < 3; ++j) {
    const Vector column[3] = {Load(block.taps[j][row]), Load(block.taps[3 + j][row]),
                              Load(block.taps[6 + j][row])};
    TransformKernel(column, half[j]);
  }
  for (int i = 0; i < 6; ++i) {
    const Vector line[3] = {half[0][i], half[1][i], half[2][i]};
    Vector t[6];
    TransformKernel(line, t);
    for (int j = 0; j < 6; ++j) Store(u + (6 * i + j) * stride, t[j]);
  }
}

// Writes a range of transformed rows of a panel, the first one to `panel`.
inline void TransformKernelPanel(const Kernel& kernel, const Range& rows, const Range& columns,
                                 float* panel) {
  const int64_t stride = PanelLayout{kernel.in}.point_stride();
  KernelBlock block;
  for (int64_t c = rows.begin; c < rows.end; c += kLanes) {
    for (int64_t k = columns.begin; k < columns.end; k += kLanes) {
      CopyKernel(kernel, c, k, block);
      float* to = panel + (c - rows.begin) * kPanel + (k - columns.begin);
      for (int row = 0; row < std::min<int64_t>(kLanes, rows.end - c); ++row, to += kPanel) {
        TransformKernelRow(block, row, to, stride);
      }
    }
  }
}

}  // namespace winograd
}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_WINOGRAD_KERNEL_H_
