// The table of the kernels of one instruction set.

#include "resnet/native/kernels.h"
#include "resnet/native/vector.h"

#ifndef RESNET_ANY_CPU
#include "resnet/native/batch_norm_kernels.h"
#include "resnet/native/conv_gemm.h"
#include "resnet/native/winograd.h"
#endif

namespace resnet::RESNET_ISA {

void Move(const MomentumPiece& piece, const MomentumStep& step);

#ifdef RESNET_ANY_CPU
extern const KernelSet kKernelSet = {nullptr, nullptr, Move};
#else
namespace {

template <typename T>
constexpr Kernels<T> kKernels = {
    ConvForwardGemm<T>,        ConvForwardWinograd<T>,       ConvInputGradientGemm<T>,
    ConvInputGradientWinograd<T>, ConvKernelGradientGemm<T>, ConvKernelGradientWinograd<T>,
    BatchNorm<T>,              Normalize<T>,                 BatchNormGrad<T>};

}  // namespace

#if defined(RESNET_AVX512_BF16)
extern const KernelSet kKernelSet = {nullptr, &kKernels<Bf16>, nullptr};
#elif defined(RESNET_AVX512)
extern const KernelSet kKernelSet = {&kKernels<float>, &kKernels<Bf16>, Move};
#else
extern const KernelSet kKernelSet = {&kKernels<float>, nullptr, Move};
#endif
#endif  // RESNET_ANY_CPU

}  // namespace resnet::RESNET_ISA
