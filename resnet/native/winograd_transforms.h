// Winograd's transforms of one tile and 16 channels, with AVX-512. Only for files whose
// callers have checked that the CPU has it.
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

#include <immintrin.h>

#include <cstdint>

#include "resnet/native/convolution.h"
#include "resnet/native/winograd_tiles.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16")

namespace resnet {
namespace winograd {

constexpr int kLanes = 16;
constexpr float kA = 0.70710678118654752f;
constexpr float kB = 1.41421356237309505f;

inline __m512 Set(float value) { return _mm512_set1_ps(value); }
inline __m512 Add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __m512 Sub(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
inline __m512 Mul(float a, __m512 b) { return _mm512_mul_ps(Set(a), b); }
inline __m512 MulAdd(float a, __m512 b, __m512 c) { return _mm512_fmadd_ps(Set(a), b, c); }

inline __m512 Load(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 Load(const float* from, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, from);
}
inline __m512 Widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline __m512 Load(const Bf16* from) {
  return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline __m512 Load(const Bf16* from, __mmask16 mask) {
  return Widen(_mm256_maskz_loadu_epi16(mask, from));
}

inline void Store(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
inline void Store(float* to, __mmask16 mask, __m512 value) {
  _mm512_mask_storeu_ps(to, mask, value);
}
inline __m256i Round(__m512 value) {
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  return reinterpret_cast<const __m256i&>(rounded);
}
inline void Store(Bf16* to, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), Round(value));
}
inline void Store(Bf16* to, __mmask16 mask, __m512 value) {
  _mm256_mask_storeu_epi16(to, mask, Round(value));
}

// Returns the mask of the valid lanes if `channels` channels are left.
inline __mmask16 LaneMask(int64_t channels) {
  return channels >= kLanes ? 0xffff : (1 << channels) - 1;
}

// 16 channels of one tile's pixels in an image; some of both may be missing.
template <typename T>
struct Patch {
  T* image;  // Points to the first of the channels.
  int64_t row[kTileIn], column[kTileIn];
  __mmask16 row_mask[kTileIn], column_mask[kTileIn];
  bool is_whole;

  Patch(T* first, int64_t channels, int64_t first_channel, const Span& rows,
        const Span& columns)
      : image(first + first_channel) {
    const __mmask16 lanes = LaneMask(channels - first_channel);
    for (int i = 0; i < kTileIn; ++i) {
      row[i] = rows.pixel[i] * channels;
      column[i] = columns.pixel[i] * channels;
      row_mask[i] = rows.mask[i] & lanes;
      column_mask[i] = columns.mask[i];
    }
    is_whole = rows.inside && columns.inside && lanes == 0xffff;
  }

  T* At(int i, int j) const { return image + row[i] + column[j]; }
  __mmask16 Mask(int i, int j) const { return row_mask[i] & column_mask[j]; }
  __m512 Get(int i, int j) const { return Load(At(i, j), Mask(i, j)); }
};

// t = B^T d.
inline void TransformInput(const __m512 d[6], __m512 t[6]) {
  t[0] = MulAdd(-2.5f, d[2], Add(d[0], d[4]));
  const __m512 even_a = MulAdd(-2, d[2], d[4]);
  const __m512 odd_a = MulAdd(kA, d[3], Mul(-kB, d[1]));
  t[1] = Add(even_a, odd_a);
  t[2] = Sub(even_a, odd_a);
  const __m512 even_b = MulAdd(-0.5f, d[2], d[4]);
  const __m512 odd_b = MulAdd(kB, d[3], Mul(-kA, d[1]));
  t[3] = Add(even_b, odd_b);
  t[4] = Sub(even_b, odd_b);
  t[5] = MulAdd(-2.5f, d[3], Add(d[1], d[5]));
}

// y = A^T m.
inline void TransformOutput(const __m512 m[6], __m512 y[4]) {
  const __m512 even_a = Add(m[1], m[2]), odd_a = Sub(m[1], m[2]);
  const __m512 even_b = Add(m[3], m[4]), odd_b = Sub(m[3], m[4]);
  y[0] = Add(m[0], Add(even_a, even_b));
  y[1] = MulAdd(kB, odd_b, Mul(kA, odd_a));
  y[2] = MulAdd(2, even_b, Mul(0.5f, even_a));
  y[3] = MulAdd(2 * kB, odd_b, MulAdd(kA / 2, odd_a, m[5]));
}

// w = A y.
inline void TransformOutputGradient(const __m512 y[4], __m512 w[6]) {
  w[0] = y[0];
  const __m512 even_a = MulAdd(0.5f, y[2], y[0]);
  const __m512 odd_a = MulAdd(kA / 2, y[3], Mul(kA, y[1]));
  w[1] = Add(even_a, odd_a);
  w[2] = Sub(even_a, odd_a);
  const __m512 even_b = MulAdd(2, y[2], y[0]);
  const __m512 odd_b = MulAdd(2 * kB, y[3], Mul(kB, y[1]));
  w[3] = Add(even_b, odd_b);
  w[4] = Sub(even_b, odd_b);
  w[5] = y[3];
}

// u = G g.
inline void TransformKernel(const __m512 g[3], __m512 u[6]) {
  u[0] = g[0];
  const __m512 even_a = MulAdd(-1 / 3.f, g[2], Mul(-2 / 3.f, g[0]));
  const __m512 odd_a = Mul(-kA * 2 / 3, g[1]);
  u[1] = Add(even_a, odd_a);
  u[2] = Sub(even_a, odd_a);
  const __m512 even_b = MulAdd(1 / 3.f, g[2], Mul(1 / 6.f, g[0]));
  const __m512 odd_b = Mul(kB / 6, g[1]);
  u[3] = Add(even_b, odd_b);
  u[4] = Sub(even_b, odd_b);
  u[5] = g[2];
}

// g = G^T u.
inline void TransformKernelGradient(const __m512 u[6], __m512 g[3]) {
  const __m512 even_a = Add(u[1], u[2]), odd_a = Sub(u[1], u[2]);
  const __m512 even_b = Add(u[3], u[4]), odd_b = Sub(u[3], u[4]);
  g[0] = MulAdd(1 / 6.f, even_b, MulAdd(-2 / 3.f, even_a, u[0]));
  g[1] = MulAdd(kB / 6, odd_b, Mul(-kA * 2 / 3, odd_a));
  g[2] = MulAdd(1 / 3.f, even_b, MulAdd(-1 / 3.f, even_a, u[5]));
}

// V = B^T d B: element (i, j) goes to v + (6 * i + j) * stride.
template <typename T>
inline void TransformInputTile(const Patch<const T>& d, float* v, int64_t stride) {
  __m512 half[6][6];
  for (int j = 0; j < 6; ++j) {
    const __m512 column[6] = {d.Get(0, j), d.Get(1, j), d.Get(2, j),
                              d.Get(3, j), d.Get(4, j), d.Get(5, j)};
    TransformInput(column, half[j]);
  }
  for (int i = 0; i < 6; ++i) {
    const __m512 row[6] = {half[0][i], half[1][i], half[2][i],
                           half[3][i], half[4][i], half[5][i]};
    __m512 t[6];
    TransformInput(row, t);
    for (int j = 0; j < 6; ++j) Store(v + (6 * i + j) * stride, t[j]);
  }
}

// W = A y A^T, for the middle four rows and columns of a patch of the outputs' gradient.
template <typename T>
inline void TransformOutputGradientTile(const Patch<const T>& y, float* w, int64_t stride) {
  __m512 half[4][6];
  for (int j = 0; j < 4; ++j) {
    const __m512 column[4] = {y.Get(1, j + 1), y.Get(2, j + 1), y.Get(3, j + 1),
                              y.Get(4, j + 1)};
    TransformOutputGradient(column, half[j]);
  }
  for (int i = 0; i < 6; ++i) {
    const __m512 row[4] = {half[0][i], half[1][i], half[2][i], half[3][i]};
    __m512 t[6];
    TransformOutputGradient(row, t);
    for (int j = 0; j < 6; ++j) Store(w + (6 * i + j) * stride, t[j]);
  }
}

// Writes y = epilogue(A^T m A) to the middle four rows and columns of a patch.
template <typename T, bool kMasked>
inline void TransformOutputTile(const float* m, int64_t stride,
                                const Patch<T>& y, const float* bias,
                                const T* residual, bool relu) {
  __m512 half[6][4];
  for (int j = 0; j < 6; ++j) {
    __m512 column[6];
    for (int i = 0; i < 6; ++i) column[i] = Load(m + (6 * i + j) * stride);
    TransformOutput(column, half[j]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512 row[6] = {half[0][i], half[1][i], half[2][i],
                           half[3][i], half[4][i], half[5][i]};
    __m512 t[4];
    TransformOutput(row, t);
    for (int j = 0; j < 4; ++j) {
      T* to = y.At(i + 1, j + 1);
      const __mmask16 mask = kMasked ? y.Mask(i + 1, j + 1) : 0xffff;
      if (kMasked && mask == 0) continue;
      if (bias) t[j] = Add(t[j], Load(bias, mask));
      if (residual) t[j] = Add(t[j], Load(residual + (to - y.image), mask));
      if (relu) t[j] = _mm512_max_ps(_mm512_setzero_ps(), t[j]);  // Keeps a NaN.
      if constexpr (kMasked) {
        Store(to, mask, t[j]);
      } else {
        Store(to, t[j]);
      }
    }
  }
}

}  // namespace winograd
}  // namespace resnet

#pragma GCC pop_options

#endif  // RESNET_NATIVE_WINOGRAD_TRANSFORMS_H_
