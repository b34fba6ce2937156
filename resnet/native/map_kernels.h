// Kernels on single values and on windows of feature maps, for any CPU.
//
// Doesn't include TensorFlow, like all that is compiled for several instruction sets.

#ifndef RESNET_NATIVE_MAP_KERNELS_H_
#define RESNET_NATIVE_MAP_KERNELS_H_

#include <cstdint>

#include "resnet/native/activation.h"
#include "resnet/native/bf16.h"
#include "resnet/native/pooling.h"

namespace resnet {

// GELU of T, with results of type U: y = gelu(x) and dx = dy * gelu'(x). dx may be dy.
template <typename T, typename U>
struct GeluKernels {
  void (*gelu)(const T* x, int64_t size, U* y);
  void (*gelu_grad)(const U* dy, const T* x, int64_t size, T* dx);
};

template <typename T>
struct MapKernels : GeluKernels<T, float>, GeluKernels<T, Bf16> {
  void (*activate)(const ActivationArguments<T>&, Kind);
  void (*activate_grad)(const ActivationArguments<T>&, Kind);
  // The maxima of one row of windows of an image: y and places are [width, channels].
  void (*max_pool)(const PoolShape&, const T* x, int64_t row, T* y, uint8_t* places);
  // The gradients of one row of an image, [width, channels], from those of its maxima.
  void (*max_pool_grad)(const PoolShape&, const T* dy, const uint8_t* places, int64_t row,
                        T* dx);
  // The means of one image: x is [positions, channels], y is [channels].
  void (*mean)(const T* x, int64_t positions, int64_t channels, T* y);
  void (*mean_grad)(const T* dy, int64_t positions, int64_t channels, T* dx);
};

}  // namespace resnet

#endif  // RESNET_NATIVE_MAP_KERNELS_H_
