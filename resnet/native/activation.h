// Arguments of the kernels of ReLU, SiLU and Mish.

#ifndef RESNET_NATIVE_ACTIVATION_H_
#define RESNET_NATIVE_ACTIVATION_H_

#include <cstdint>

namespace resnet {

enum class Kind { kRelu, kSilu, kMish };

constexpr int kMostCopies = 2;  // Of y: for the next block's convolutions and shortcut.

// The part of one image, or a piece of the values of all without a gate. Gradients only:
// dy, dx, dresidual and dgate.
template <typename T>
struct ActivationArguments {
  int64_t rows, channels;
  const T* x;  // [rows, channels], like residual, y, dy, dx and dresidual.
  const T* residual;
  const float* gate;  // [channels]; nullptr for neither gate nor residual.
  T* y;
  const T* dy[kMostCopies];
  int num_dys;
  T* dx;
  T* dresidual;
  float* dgate;  // [channels].
};

}  // namespace resnet

#endif  // RESNET_NATIVE_ACTIVATION_H_
