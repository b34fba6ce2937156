// Winograd's transforms of one tile and as many channels as a vector has lanes.
//
// The interpolation points are 0, +-a, +-b with a = 1/sqrt(2), b = sqrt(2), and infinity.
// Their error is half of that of Lavin and Gray's points 0, +-1, +-2, at the same cost. In
// one dimension, with kernel g and data d, the outputs are y = A^T ((G g) * (B^T d)), see
// Barabasz et al. 2018, arXiv:1803.10986, with
//   A^T = 1  1  1    1    1   0    G = 1     0     0      B^T = 1   0   -5/2   0   1   0
//         0  a -a    b   -b   0       -2/3 -2/3 a -1/3          0  -b   -2     a   1   0
//         0 a^2 a^2  b^2  b^2 0       -2/3  2/3 a -1/3          0   b   -2    -a   1   0
//         0 a^3 -a^3 b^3 -b^3 1        1/6  1/6 b  1/3          0  -a   -1/2   b   1   0
//                                      1/6 -1/6 b  1/3          0   a   -1/2  -b   1   0
//                                      0     0     1            0   1    0  -5/2  0   1

#ifndef RESNET_NATIVE_WINOGRAD_TRANSFORMS_H_
#define RESNET_NATIVE_WINOGRAD_TRANSFORMS_H_

#include <cstdint>

#include "resnet/native/convolution.h"
#include "resnet/native/vector.h"
#include "resnet/native/winograd_tiles.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace winograd {

constexpr float kA = 0.70710678118654752f;
constexpr float kB = 1.41421356237309505f;

// The channels of a vector at one tile's pixels in an image; some of both may be missing.
template <typename T>
struct Patch {
  T* image;  // Points to the first of the channels.
  int64_t row[kTileIn], column[kTileIn];
  Mask row_mask[kTileIn], column_mask[kTileIn];
  bool is_whole;

  Patch(T* first, int64_t channels, int64_t first_channel, const Span& rows,
        const Span& columns)
      : image(first + first_channel) {
    is_whole = rows.inside && columns.inside && channels - first_channel >= kLanes;
    for (int i = 0; i < kTileIn; ++i) {
      row[i] = rows.pixel[i] * channels;
      column[i] = columns.pixel[i] * channels;
    }
    if (is_whole && !kMasksAreFree) return;
    const Mask lanes = FirstLanes(channels - first_channel);
    for (int i = 0; i < kTileIn; ++i) {
      row_mask[i] = Both(AllOrNone(rows.mask[i]), lanes);
      column_mask[i] = AllOrNone(columns.mask[i]);
    }
  }

  T* At(int i, int j) const { return image + row[i] + column[j]; }
  Mask MaskAt(int i, int j) const { return Both(row_mask[i], column_mask[j]); }

  template <bool kMasked>
  Vector Get(int i, int j) const {
    if constexpr (kMasked) return Load(At(i, j), MaskAt(i, j));
    return Load(At(i, j));
  }
};

// t = B^T d.
inline void TransformInput(const Vector d[6], Vector t[6]) {
  t[0] = MulAdd(-2.5f, d[2], Add(d[0], d[4]));
  const Vector even_a = MulAdd(-2, d[2], d[4]);
  const Vector odd_a = MulAdd(kA, d[3], Mul(-kB, d[1]));
  t[1] = Add(even_a, odd_a);
  t[2] = Sub(even_a, odd_a);
  const Vector even_b = MulAdd(-0.5f, d[2], d[4]);
  const Vector odd_b = MulAdd(kB, d[3], Mul(-kA, d[1]));
  t[3] = Add(even_b, odd_b);
  t[4] = Sub(even_b, odd_b);
  t[5] = MulAdd(-2.5f, d[3], Add(d[1], d[5]));
}

// y = A^T m.
inline void TransformOutput(const Vector m[6], Vector y[4]) {
  const Vector even_a = Add(m[1], m[2]), odd_a = Sub(m[1], m[2]);
  const Vector even_b = Add(m[3], m[4]), odd_b = Sub(m[3], m[4]);
  y[0] = Add(m[0], Add(even_a, even_b));
  y[1] = MulAdd(kB, odd_b, Mul(kA, odd_a));
  y[2] = MulAdd(2, even_b, Mul(0.5f, even_a));
  y[3] = MulAdd(2 * kB, odd_b, MulAdd(kA / 2, odd_a, m[5]));
}

// w = A y.
inline void TransformOutputGradient(const Vector y[4], Vector w[6]) {
  w[0] = y[0];
  const Vector even_a = MulAdd(0.5f, y[2], y[0]);
  const Vector odd_a = MulAdd(kA / 2, y[3], Mul(kA, y[1]));
  w[1] = Add(even_a, odd_a);
  w[2] = Sub(even_a, odd_a);
  const Vector even_b = MulAdd(2, y[2], y[0]);
  const Vector odd_b = MulAdd(2 * kB, y[3], Mul(kB, y[1]));
  w[3] = Add(even_b, odd_b);
  w[4] = Sub(even_b, odd_b);
  w[5] = y[3];
}

// u = G g.
inline void TransformKernel(const Vector g[3], Vector u[6]) {
  u[0] = g[0];
  const Vector even_a = MulAdd(-1 / 3.f, g[2], Mul(-2 / 3.f, g[0]));
  const Vector odd_a = Mul(-kA * 2 / 3, g[1]);
  u[1] = Add(even_a, odd_a);
  u[2] = Sub(even_a, odd_a);
  const Vector even_b = MulAdd(1 / 3.f, g[2], Mul(1 / 6.f, g[0]));
  const Vector odd_b = Mul(kB / 6, g[1]);
  u[3] = Add(even_b, odd_b);
  u[4] = Sub(even_b, odd_b);
  u[5] = g[2];
}

// g = G^T u.
inline void TransformKernelGradient(const Vector u[6], Vector g[3]) {
  const Vector even_a = Add(u[1], u[2]), odd_a = Sub(u[1], u[2]);
  const Vector even_b = Add(u[3], u[4]), odd_b = Sub(u[3], u[4]);
  g[0] = MulAdd(1 / 6.f, even_b, MulAdd(-2 / 3.f, even_a, u[0]));
  g[1] = MulAdd(kB / 6, odd_b, Mul(-kA * 2 / 3, odd_a));
  g[2] = MulAdd(1 / 3.f, even_b, MulAdd(-1 / 3.f, even_a, u[5]));
}

// V = B^T d B: element (i, j) goes to v + (6 * i + j) * stride.
template <bool kMasked, typename T>
inline void TransformInputPatch(const Patch<const T>& d, float* v, int64_t stride) {
  Vector half[6][6];
  for (int j = 0; j < 6; ++j) {
    Vector column[6];
    for (int i = 0; i < 6; ++i) column[i] = d.template Get<kMasked>(i, j);
    TransformInput(column, half[j]);
  }
  for (int i = 0; i < 6; ++i) {
    const Vector row[6] = {half[0][i], half[1][i], half[2][i],
                           half[3][i], half[4][i], half[5][i]};
    Vector t[6];
    TransformInput(row, t);
    for (int j = 0; j < 6; ++j) Store(v + (6 * i + j) * stride, t[j]);
  }
}

template <typename T>
inline void TransformInputTile(const Patch<const T>& d, float* v, int64_t stride) {
  if (!kMasksAreFree && d.is_whole) return TransformInputPatch<false>(d, v, stride);
  TransformInputPatch<true>(d, v, stride);
}

// W = A y A^T, for the middle four rows and columns of a patch of the outputs' gradient.
template <bool kMasked, typename T>
inline void TransformOutputGradientPatch(const Patch<const T>& y, float* w,
                                         int64_t stride) {
  Vector half[4][6];
  for (int j = 0; j < 4; ++j) {
    Vector column[4];
    for (int i = 0; i < 4; ++i) column[i] = y.template Get<kMasked>(i + 1, j + 1);
    TransformOutputGradient(column, half[j]);
  }
  for (int i = 0; i < 6; ++i) {
    const Vector row[4] = {half[0][i], half[1][i], half[2][i], half[3][i]};
    Vector t[6];
    TransformOutputGradient(row, t);
    for (int j = 0; j < 6; ++j) Store(w + (6 * i + j) * stride, t[j]);
  }
}

template <typename T>
inline void TransformOutputGradientTile(const Patch<const T>& y, float* w, int64_t stride) {
  if (!kMasksAreFree && y.is_whole) return TransformOutputGradientPatch<false>(y, w, stride);
  TransformOutputGradientPatch<true>(y, w, stride);
}

// Writes y = epilogue(A^T m A) to the middle four rows and columns of a patch.
template <typename T, bool kMasked>
inline void TransformOutputTile(const float* m, int64_t stride,
                                const Patch<T>& y, const float* bias,
                                const T* residual, bool relu) {
  Vector half[6][4];
  for (int j = 0; j < 6; ++j) {
    Vector column[6];
    for (int i = 0; i < 6; ++i) column[i] = Load(m + (6 * i + j) * stride);
    TransformOutput(column, half[j]);
  }
  for (int i = 0; i < 4; ++i) {
    const Vector row[6] = {half[0][i], half[1][i], half[2][i],
                           half[3][i], half[4][i], half[5][i]};
    Vector t[4];
    TransformOutput(row, t);
    for (int j = 0; j < 4; ++j) {
      T* to = y.At(i + 1, j + 1);
      Mask mask{};
      if constexpr (kMasked) {
        mask = y.MaskAt(i + 1, j + 1);
        if (IsEmpty(mask)) continue;
      }
      const auto load = [=](const auto* from) {
        if constexpr (kMasked) return Load(from, mask);
        return Load(from);
      };
      if (bias) t[j] = Add(t[j], load(bias));
      if (residual) t[j] = Add(t[j], load(residual + (to - y.image)));
      if (relu) t[j] = Max(Zero(), t[j]);  // Keeps a NaN.
      if constexpr (kMasked) {
        Store(to, mask, t[j]);
      } else {
        Store(to, t[j]);
      }
    }
  }
}

}  // namespace winograd
}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_WINOGRAD_TRANSFORMS_H_
