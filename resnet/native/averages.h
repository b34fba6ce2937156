// Exponential moving averages of the statistics of batches.

#ifndef RESNET_NATIVE_AVERAGES_H_
#define RESNET_NATIVE_AVERAGES_H_

#include "tensorflow/core/framework/tensor.h"

namespace resnet {

// average -= (average - statistic) * step, for float32 of one shape, in which each
// operation is rounded, as by stock ops.
void MoveAverage(tensorflow::Tensor* average, const tensorflow::Tensor& statistic,
                 float step);

}  // namespace resnet

#endif  // RESNET_NATIVE_AVERAGES_H_
