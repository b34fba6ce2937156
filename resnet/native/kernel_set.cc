// The table of the kernels of one instruction set.

#include "resnet/native/activation_kernels.h"
#include "resnet/native/kernels.h"
#include "resnet/native/momentum_kernels.h"
#include "resnet/native/pooling_kernels.h"
#include "resnet/native/vector.h"

#ifndef RESNET_ANY_CPU
#include "resnet/native/batch_norm_kernels.h"
#include "resnet/native/conv_gemm.h"
#include "resnet/native/winograd.h"
#endif

namespace resnet::RESNET_ISA {

#ifdef RESNET_AVX512_AMX
// Convolves with AMX, also where others use Winograd's algorithm.
extern const ConvolutionKernels<Bf16> kConvolutions = {
    ConvForwardGemm<Bf16>,       ConvForwardGemm<Bf16>,        ConvInputGradientGemm<Bf16>,
    ConvInputGradientGemm<Bf16>, ConvKernelGradientGemm<Bf16>, ConvKernelGradientGemm<Bf16>};
#else

#ifndef RESNET_AVX512_BF16  // Nothing here is faster with its instructions.
namespace {

template <typename T>
constexpr MapKernels<T> kMapKernels = {
    {Gelu<T, float>, GeluGrad<T, float>},
    {Gelu<T, Bf16>, GeluGrad<T, Bf16>},
    Activate<T>,
    ActivateGrad<T>,
    MaxPool<T>,
    MaxPoolGrad<T>,
    Mean<T>,
    MeanGrad<T>};

}  // namespace
#endif

#ifdef RESNET_ANY_CPU
extern const KernelSet kKernelSet = {nullptr, nullptr, &kMapKernels<float>,
                                     &kMapKernels<Bf16>, Move};
#else
namespace {

template <typename T>
constexpr Kernels<T> kKernels = {
    {ConvForwardGemm<T>, ConvForwardWinograd<T>, ConvInputGradientGemm<T>,
     ConvInputGradientWinograd<T>, ConvKernelGradientGemm<T>, ConvKernelGradientWinograd<T>},
    BatchNorm<T>,
    Normalize<T>,
    BatchNormGrad<T>};

}  // namespace

#if defined(RESNET_AVX512_BF16)
extern const KernelSet kKernelSet = {nullptr, &kKernels<Bf16>, nullptr, nullptr, nullptr};
#elif defined(RESNET_AVX512) || defined(RESNET_NEON)
extern const KernelSet kKernelSet = {&kKernels<float>, &kKernels<Bf16>,
                                     &kMapKernels<float>, &kMapKernels<Bf16>, Move};
#else
extern const KernelSet kKernelSet = {&kKernels<float>, nullptr, &kMapKernels<float>,
                                     &kMapKernels<Bf16>, Move};
#endif
#endif  // RESNET_ANY_CPU
#endif  // RESNET_AVX512_AMX

}  // namespace resnet::RESNET_ISA
