// Batch normalization in training mode, for one instruction set.

#ifndef RESNET_NATIVE_BATCH_NORM_KERNELS_H_
#define RESNET_NATIVE_BATCH_NORM_KERNELS_H_

#include "resnet/native/batch_norm.h"
#include "resnet/native/context.h"
#include "resnet/native/vector.h"

namespace resnet::RESNET_ISA {

template <typename T>
void BatchNorm(const BatchNormArguments<T>& arguments, Context& context);

// Recomputes the y of `BatchNorm`, bit for bit, from the mean and inverse_stddev that it
// computed.
template <typename T>
void Normalize(const NormalizeArguments<T>& arguments, const float* mean,
               const float* inverse_stddev, Context& context);

template <typename T>
void BatchNormGrad(const BatchNormGradArguments<T>& arguments, Context& context);

}  // namespace resnet::RESNET_ISA

#endif  // RESNET_NATIVE_BATCH_NORM_KERNELS_H_
