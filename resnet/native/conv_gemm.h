// Convolutions as matrix products over gathered patches.

#ifndef RESNET_NATIVE_CONV_GEMM_H_
#define RESNET_NATIVE_CONV_GEMM_H_

#include "resnet/native/convolution.h"

namespace resnet {

// y = epilogue(convolution of x); all of y is written.
template <typename T>
void ConvForwardGemm(const ConvShape& shape, const T* x, const float* kernel,
                     const Epilogue<T>& epilogue, T* y, Context& context);

// dx from dy; all of dx is written.
template <typename T>
void ConvInputGradientGemm(const ConvShape& shape, const T* dy, const float* kernel, T* dx,
                           Context& context);

// The kernel's gradient from x and dy; all of it is written.
template <typename T>
void ConvKernelGradientGemm(const ConvShape& shape, const T* x, const T* dy, float* dkernel,
                            Context& context);

}  // namespace resnet

#endif  // RESNET_NATIVE_CONV_GEMM_H_
