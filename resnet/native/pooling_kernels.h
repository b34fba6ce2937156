// Max pooling and the mean over all positions, for one instruction set. map_kernels.h says
// what they do.

#ifndef RESNET_NATIVE_POOLING_KERNELS_H_
#define RESNET_NATIVE_POOLING_KERNELS_H_

#include <cstdint>

#include "resnet/native/pooling.h"
#include "resnet/native/vector.h"

namespace resnet::RESNET_ISA {

template <typename T>
void MaxPool(const PoolShape& shape, const T* x, int64_t row, T* y, uint8_t* places);
template <typename T>
void MaxPoolGrad(const PoolShape& shape, const T* dy, const uint8_t* places, int64_t row,
                 T* dx);

template <typename T>
void Mean(const T* x, int64_t positions, int64_t channels, T* y);
template <typename T>
void MeanGrad(const T* dy, int64_t positions, int64_t channels, T* dx);

}  // namespace resnet::RESNET_ISA

#endif  // RESNET_NATIVE_POOLING_KERNELS_H_
