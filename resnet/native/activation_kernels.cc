// The loops of ReLU, SiLU, Mish and GELU, which the compiler turns into vectors.

#include "resnet/native/activation_kernels.h"

#include <algorithm>
#include <cstdint>

#include "resnet/native/activation_functions.h"
#include "resnet/native/bf16.h"
#include "resnet/native/strips.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace {

template <Kind kind, typename T>
INLINED void ForwardStrip(const ActivationArguments<T>& a, int64_t first, int64_t channel,
                          int64_t size) {
  float x_buffer[kStrip], residual_buffer[kStrip], y_buffer[kStrip];
  const float* x = Widened(a.x + first, size, x_buffer);
  float* y = Unrounded(a.y + first, y_buffer);
  if (a.gate == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) y[i] = ActivationOf<kind>(x[i]);
  } else {
    const float* gate = a.gate + channel;
    const float* residual = Widened(a.residual + first, size, residual_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) {
      y[i] = ActivationOf<kind>(gate[i] * x[i] + residual[i]);
    }
  }
  Narrow(y, size, a.y + first);
}

// Each element is read before it is written, so dx may share its memory with a dy.
template <Kind kind, typename T>
INLINED void BackwardStrip(const ActivationArguments<T>& a, int64_t first, int64_t channel,
                           int64_t size) {
  float x_buffer[kStrip], residual_buffer[kStrip], dx_buffer[kStrip], g_buffer[kStrip];
  float dy_buffer[kStrip];
  const float* x = Widened(a.x + first, size, x_buffer);
  const float* dy = Widened(a.dy[0] + first, size, dy_buffer);
  if (a.num_dys == 2) {
    const float* other = Widened(a.dy[1] + first, size, g_buffer);
    for (int64_t i = 0; i < size; ++i) dx_buffer[i] = dy[i] + other[i];
    dy = dx_buffer;
  }
  float* dx = Unrounded(a.dx + first, dx_buffer);
  if (a.gate == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) dx[i] = dy[i] * Derivative<kind>(x[i]);
  } else {
    const float* gate = a.gate + channel;
    float* dgate = a.dgate + channel;
    const float* residual = Widened(a.residual + first, size, residual_buffer);
    float* dresidual = Unrounded(a.dresidual + first, g_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) {
      const float g = dy[i] * Derivative<kind>(gate[i] * x[i] + residual[i]);
      dgate[i] += g * x[i];
      dresidual[i] = g;
      dx[i] = g * gate[i];
    }
    Narrow(dresidual, size, a.dresidual + first);
  }
  Narrow(dx, size, a.dx + first);
}

// Calls strip(first, channel, size) for strips of at most kStrip values. With a gate these
// are of one position.
template <typename T, typename Strip>
INLINED void ForEachStrip(const ActivationArguments<T>& a, const Strip& strip) {
  const bool has_gate = a.gate != nullptr;
  const int64_t rows = has_gate ? a.rows : 1;
  const int64_t width = has_gate ? a.channels : a.rows * a.channels;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; i += kStrip) {
      strip(row * width + i, i, std::min(kStrip, width - i));
    }
  }
}

template <Kind kind, typename T>
INLINED void ForwardOf(const ActivationArguments<T>& a) {
  ForEachStrip(a, [&](int64_t first, int64_t channel, int64_t size) __attribute__((
                      always_inline)) { ForwardStrip<kind>(a, first, channel, size); });
}

template <Kind kind, typename T>
INLINED void BackwardOf(const ActivationArguments<T>& a) {
  if (a.gate != nullptr) std::fill_n(a.dgate, a.channels, 0.0f);
  ForEachStrip(a, [&](int64_t first, int64_t channel, int64_t size) __attribute__((
                      always_inline)) { BackwardStrip<kind>(a, first, channel, size); });
}

}  // namespace

template <typename T>
void Activate(const ActivationArguments<T>& arguments, Kind kind) {
  if (kind == Kind::kRelu) return ForwardOf<Kind::kRelu>(arguments);
  if (kind == Kind::kSilu) return ForwardOf<Kind::kSilu>(arguments);
  ForwardOf<Kind::kMish>(arguments);
}

template <typename T>
void ActivateGrad(const ActivationArguments<T>& arguments, Kind kind) {
  if (kind == Kind::kRelu) return BackwardOf<Kind::kRelu>(arguments);
  if (kind == Kind::kSilu) return BackwardOf<Kind::kSilu>(arguments);
  BackwardOf<Kind::kMish>(arguments);
}

template <typename T, typename U>
void Gelu(const T* x, int64_t size, U* y) {
  float x_buffer[kStrip], y_buffer[kStrip];
  for (; size > 0; size -= kStrip, x += kStrip, y += kStrip) {
    const int64_t length = std::min(kStrip, size);
    const float* xs = Widened(x, length, x_buffer);
    float* ys = Unrounded(y, y_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < length; ++i) ys[i] = GeluOf(xs[i]);
    Narrow(ys, length, y);
  }
}

// Each element is read before it is written, so dx may share its memory with dy.
template <typename T, typename U>
void GeluGrad(const U* dy, const T* x, int64_t size, T* dx) {
  float x_buffer[kStrip], dy_buffer[kStrip], dx_buffer[kStrip];
  for (; size > 0; size -= kStrip, x += kStrip, dy += kStrip, dx += kStrip) {
    const int64_t length = std::min(kStrip, size);
    const float* xs = Widened(x, length, x_buffer);
    const float* dys = Widened(dy, length, dy_buffer);
    float* dxs = Unrounded(dx, dx_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < length; ++i) dxs[i] = dys[i] * GeluDerivative(xs[i]);
    Narrow(dxs, length, dx);
  }
}

#define INSTANTIATE_FOR_PAIR(T, U)             \
  template void Gelu(const T*, int64_t, U*);   \
  template void GeluGrad(const U*, const T*, int64_t, T*);
#define INSTANTIATE(T)                                             \
  template void Activate(const ActivationArguments<T>&, Kind);     \
  template void ActivateGrad(const ActivationArguments<T>&, Kind); \
  INSTANTIATE_FOR_PAIR(T, float)                                   \
  INSTANTIATE_FOR_PAIR(T, Bf16)
INSTANTIATE(float)
INSTANTIATE(Bf16)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
