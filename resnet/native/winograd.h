// 3x3 convolutions of stride 1 with a quarter of the multiplications.
//
// Winograd's minimal filtering F(4x4, 3x3) computes 4x4 outputs with 36 multiplications
// instead of 144. It computes in float32 for both dtypes. Its error is two to three times
// that of direct summation in float32, far below bfloat16's precision. A non-finite input
// turns all outputs of the 4x4 tiles that read it into NaN.
// Source: Lavin and Gray 2015, arXiv:1509.09308, section 4.

#ifndef RESNET_NATIVE_WINOGRAD_H_
#define RESNET_NATIVE_WINOGRAD_H_

#include "resnet/native/context.h"
#include "resnet/native/convolution.h"
#include "resnet/native/vector.h"

namespace resnet::RESNET_ISA {

// y = epilogue(convolution(x, kernel * scale)), with a factor for each output channel;
// nullptr for none.
template <typename T>
void ConvForwardWinograd(const ConvShape& shape, const T* x, const float* kernel,
                         const float* scale, const Epilogue<T>& epilogue, T* y,
                         Context& context);

// Computes dx, the gradient of sum(dy * y) with respect to x.
template <typename T>
void ConvInputGradientWinograd(const ConvShape& shape, const T* dy, const float* kernel,
                               T* dx, Context& context);

// Computes dkernel, the gradient of sum(dy * y) with respect to the kernel.
template <typename T>
void ConvKernelGradientWinograd(const ConvShape& shape, const T* x, const T* dy,
                                float* dkernel, Context& context);

}  // namespace resnet::RESNET_ISA

#endif  // RESNET_NATIVE_WINOGRAD_H_
