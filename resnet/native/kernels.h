// The kernels that the ops call: those of the best instruction set of this CPU.
//
// Doesn't include TensorFlow, like all that is compiled for several instruction sets.

#ifndef RESNET_NATIVE_KERNELS_H_
#define RESNET_NATIVE_KERNELS_H_

#include "resnet/native/batch_norm.h"
#include "resnet/native/bf16.h"
#include "resnet/native/context.h"
#include "resnet/native/convolution.h"
#include "resnet/native/map_kernels.h"
#include "resnet/native/momentum_kernels.h"

namespace resnet {

// The convolutions of images of one number type; conv_gemm.h and winograd.h say what they
// do.
template <typename T>
struct ConvolutionKernels {
  using Forward = void(const ConvShape&, const T*, const float*, const float*,
                       const Epilogue<T>&, T*, Context&);
  using InputGradient = void(const ConvShape&, const T*, const float*, T*, Context&);
  using KernelGradient = void(const ConvShape&, const T*, const T*, float*, Context&);

  Forward* forward_gemm;
  Forward* forward_winograd;
  InputGradient* input_gradient_gemm;
  InputGradient* input_gradient_winograd;
  KernelGradient* kernel_gradient_gemm;
  KernelGradient* kernel_gradient_winograd;
};

// The kernels for images of one number type; for the others see batch_norm_kernels.h.
template <typename T>
struct Kernels : ConvolutionKernels<T> {
  void (*batch_norm)(const BatchNormArguments<T>&, Context&);
  void (*normalize)(const NormalizeArguments<T>&, const float*, const float*, Context&);
  void (*batch_norm_grad)(const BatchNormGradArguments<T>&, Context&);
};

// The kernels of one instruction set; nullptr for what it has none for.
struct KernelSet {
  const Kernels<float>* float32;
  const Kernels<Bf16>* bf16;
  const MapKernels<float>* float32_maps;
  const MapKernels<Bf16>* bf16_maps;
  MoveFunction* move;
};

// Returns the kernels to use now, of one or two instruction sets.
KernelSet CurrentKernels();

}  // namespace resnet

#endif  // RESNET_NATIVE_KERNELS_H_
