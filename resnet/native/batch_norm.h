// Batch normalization in training, with the sum with a residual and ReLU in one.

#ifndef RESNET_NATIVE_BATCH_NORM_H_
#define RESNET_NATIVE_BATCH_NORM_H_

#include <cstdint>

#include "resnet/native/convolution.h"

namespace resnet {

// y = relu(gamma * (x - mean) * inverse_stddev + beta + residual).
template <typename T>
struct NormalizeArguments {
  int64_t rows, channels;
  const T* x;  // [rows, channels], as are residual and y.
  const float* gamma;
  const float* beta;
  const T* residual;  // nullptr: none is added.
  bool relu;

  T* y;
  uint8_t* positive;  // [PositiveBytes]; nullptr: isn't wanted.
};

// The same by the moments of x: mean is over its rows and inverse_stddev =
// 1 / sqrt(variance of x + epsilon), each [channels].
//
// The variance there is the mean square of the deviations; the one that is an output is
// the unbiased one, their sum divided by rows - 1.
// Source: Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 1.
template <typename T>
struct BatchNormArguments : NormalizeArguments<T> {
  float epsilon;

  float* mean;
  float* unbiased_variance;
  float* inverse_stddev;
};

template <typename T>
void BatchNorm(const BatchNormArguments<T>& arguments, Context& context);

// Writes, bit for bit, what BatchNorm wrote, from the mean and inverse_stddev that it found.
template <typename T>
void Normalize(const NormalizeArguments<T>& arguments, const float* mean,
               const float* inverse_stddev, Context& context);

// Returns the size of `positive`: one bit for each element, whether y is above 0. The
// gradient needs no more of y where it can't be worked out from x alone.
template <typename T>
int64_t PositiveBytes(int64_t rows, int64_t channels);

// The gradients of the above. With g = the sum of the dys, 0 where y is not above 0 if
// there is a ReLU, and xhat = (x - mean) * inverse_stddev:
//
//   dbeta = sum of g over the rows, dgamma = sum of g * xhat over the rows
//   dresidual = g
//   dx = gamma * inverse_stddev * (g - dbeta / rows - xhat * dgamma / rows)
//
// dresidual may be one of the dys, and dx may be one of them or x: elements are read
// before they are written. But dresidual and dx are not the same.
template <typename T>
struct BatchNormGradArguments {
  int64_t rows, channels;
  const T* const* dys;  // [num_dys], of [rows, channels], as are x, dx and dresidual.
  int num_dys;
  const T* x;
  const uint8_t* positive;  // Of the forward pass; read if there is a residual and ReLU.
  const float* gamma;
  const float* beta;
  const float* mean;
  const float* inverse_stddev;
  bool relu;

  T* dx;
  float* dgamma;
  float* dbeta;
  T* dresidual;  // nullptr: there was no residual.
};

template <typename T>
void BatchNormGrad(const BatchNormGradArguments<T>& arguments, Context& context);

}  // namespace resnet

#endif  // RESNET_NATIVE_BATCH_NORM_H_
