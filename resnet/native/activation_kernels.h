// ReLU, SiLU, Mish and GELU, for one instruction set. map_kernels.h says what they do.

#ifndef RESNET_NATIVE_ACTIVATION_KERNELS_H_
#define RESNET_NATIVE_ACTIVATION_KERNELS_H_

#include <cstdint>

#include "resnet/native/activation.h"
#include "resnet/native/vector.h"

namespace resnet::RESNET_ISA {

template <typename T>
void Activate(const ActivationArguments<T>& arguments, Kind kind);
template <typename T>
void ActivateGrad(const ActivationArguments<T>& arguments, Kind kind);

template <typename T, typename U>
void Gelu(const T* x, int64_t size, U* y);
template <typename T, typename U>
void GeluGrad(const U* dy, const T* x, int64_t size, T* dx);

}  // namespace resnet::RESNET_ISA

#endif  // RESNET_NATIVE_ACTIVATION_KERNELS_H_
