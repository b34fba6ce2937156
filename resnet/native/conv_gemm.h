// Convolutions as matrix products over gathered patches.

#ifndef RESNET_NATIVE_CONV_GEMM_H_
#define RESNET_NATIVE_CONV_GEMM_H_

#include "resnet/native/context.h"
#include "resnet/native/convolution.h"
#include "resnet/native/vector.h"

namespace resnet::RESNET_ISA {

// y = epilogue(convolution of x with kernel * scale), with a factor for each output
// channel, or nullptr for none; writes all of y.
template <typename T>
void ConvForwardGemm(const ConvShape& shape, const T* x, const float* kernel,
                     const float* scale, const Epilogue<T>& epilogue, T* y,
                     Context& context);

// Computes dx from dy; writes all of dx.
template <typename T>
void ConvInputGradientGemm(const ConvShape& shape, const T* dy, const float* kernel, T* dx,
                           Context& context);

// Computes the kernel's gradient from x and dy; writes all of it.
template <typename T>
void ConvKernelGradientGemm(const ConvShape& shape, const T* x, const T* dy, float* dkernel,
                            Context& context);

}  // namespace resnet::RESNET_ISA

#endif  // RESNET_NATIVE_CONV_GEMM_H_
