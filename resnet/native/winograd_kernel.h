// The transformed kernel of Winograd's algorithm, in the layout that its products read.
// Needs AVX-512, see winograd_transforms.h.

#ifndef RESNET_NATIVE_WINOGRAD_KERNEL_H_
#define RESNET_NATIVE_WINOGRAD_KERNEL_H_

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "resnet/native/winograd_blocks.h"
#include "resnet/native/winograd_transforms.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16")

namespace resnet {
namespace winograd {

constexpr int64_t kPanel = 2 * kLanes;  // Contiguous columns of the transformed kernel.

// A 3x3 kernel from `in` to `out` channels.
struct Kernel {
  const float* weights;
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

inline __m512 UnpackLow(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

inline __m512 UnpackHigh(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

// Transposes a 16x16 matrix.
inline void Transpose(__m512 rows[kLanes]) {
  __m512 t[kLanes];
  for (int i = 0; i < kLanes; i += 4) {  // rows[i + j] holds column j of the 4x4 blocks.
    const __m512 a = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    const __m512 b = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const __m512 c = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    const __m512 d = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    rows[i] = UnpackLow(a, b);
    rows[i + 1] = UnpackHigh(a, b);
    rows[i + 2] = UnpackLow(c, d);
    rows[i + 3] = UnpackHigh(c, d);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0xdd);
    t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
    t[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
    t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
  for (int i = 0; i < kLanes; ++i) rows[i] = t[i];
}

// 16 rows and columns of the kernel at each of its nine positions.
struct KernelBlock {
  alignas(64) float taps[9][kLanes][kLanes];
};

// Copies rows from c on and columns from k on, with zeros past the ends. Without a copy the
// transform would suffer cache conflicts, because the kernel's rows are powers of two
// apart.
inline void CopyKernel(const Kernel& kernel, int64_t c, int64_t k, KernelBlock& block) {
  const int64_t tap_stride = kernel.in * kernel.out;
  for (int tap = 0; tap < 9; ++tap) {
    __m512 lines[kLanes];
    if (kernel.is_gradient) {
      const float* from = kernel.weights + (8 - tap) * tap_stride + k * kernel.in + c;
      const __mmask16 mask = LaneMask(kernel.in - c);
      for (int i = 0; i < kLanes; ++i, from += kernel.in) {
        lines[i] = k + i < kernel.out ? Load(from, mask) : _mm512_setzero_ps();
      }
      Transpose(lines);
    } else {
      const float* from = kernel.weights + tap * tap_stride + c * kernel.out + k;
      const __mmask16 mask = LaneMask(kernel.out - k);
      for (int i = 0; i < kLanes; ++i, from += kernel.out) {
        lines[i] = c + i < kernel.in ? Load(from, mask) : _mm512_setzero_ps();
      }
    }
    for (int i = 0; i < kLanes; ++i) Store(block.taps[tap][i], lines[i]);
  }
}

// U = G g G^T for one row: element (i, j) goes to u + (6 * i + j) * stride.
inline void TransformKernelRow(const KernelBlock& block, int row, float* u, int64_t stride) {
  __m512 half[3][6];
  for (int j = 0; j < 3; ++j) {
    const __m512 column[3] = {Load(block.taps[j][row]), Load(block.taps[3 + j][row]),
                              Load(block.taps[6 + j][row])};
    TransformKernel(column, half[j]);
  }
  for (int i = 0; i < 6; ++i) {
    const __m512 line[3] = {half[0][i], half[1][i], half[2][i]};
    __m512 t[6];
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
}  // namespace resnet

#pragma GCC pop_options

#endif  // RESNET_NATIVE_WINOGRAD_KERNEL_H_
