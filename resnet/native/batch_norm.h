// The arguments of batch normalization in training mode, fused with residual addition and
// ReLU.

#ifndef RESNET_NATIVE_BATCH_NORM_H_
#define RESNET_NATIVE_BATCH_NORM_H_

#include <cstdint>

#include "resnet/native/rounding.h"

namespace resnet {

// The arguments of `Normalize`:
// y = relu(gamma * (x - mean) * inverse_stddev + beta + residual).
template <typename T>
struct NormalizeArguments {
  int64_t rows, channels;
  const T* x;  // [rows, channels], like residual and y.
  const float* gamma;
  const float* beta;
  const T* residual;  // nullptr if there is none.
  bool relu;

  T* y;
  uint8_t* positive;  // [PositiveBytes]; nullptr if it isn't needed.
};

// The arguments of `BatchNorm`, which computes mean and inverse_stddev =
// 1 / sqrt(variance + epsilon) over the rows of x, each [channels].
//
// It normalizes with the biased variance, the sum of squared deviations divided by rows.
// The output is the unbiased variance, that sum divided by rows - 1.
// Source: Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 1.
template <typename T>
struct BatchNormArguments : NormalizeArguments<T> {
  float epsilon;

  float* mean;
  float* unbiased_variance;
  float* inverse_stddev;
};

// Returns the number of bytes of `positive`, which has one bit per element: whether y is
// above 0. With a residual this can't be computed from x alone, and it is all that the
// gradient needs of y.
//
// A row has whole units of 64 bytes of x.
template <typename T>
int64_t PositiveBytes(int64_t rows, int64_t channels) {
  constexpr int64_t kUnit = 64 / sizeof(T);
  return rows * CeilDivide(channels, kUnit) * (kUnit / 8);
}

// The arguments of `BatchNormGrad`. With g = the sum of the dys, set to 0 where y is not
// above 0 if there is a ReLU, and xhat = (x - mean) * inverse_stddev:
//
//   dbeta = sum of g over the rows, dgamma = sum of g * xhat over the rows
//   dresidual = g
//   dx = gamma * inverse_stddev * (g - dbeta / rows - xhat * dgamma / rows)
//
// dresidual may share its memory with one of the dys, and dx with one of the dys or x,
// because each element is read before it is written. dresidual and dx must be distinct.
template <typename T>
struct BatchNormGradArguments {
  int64_t rows, channels;
  const T* const* dys;  // num_dys arrays [rows, channels], like x, dx and dresidual.
  int num_dys;
  const T* x;
  const uint8_t* positive;  // From the forward pass; read with residual and ReLU.
  const float* gamma;
  const float* beta;
  const float* mean;
  const float* inverse_stddev;
  bool relu;

  T* dx;
  float* dgamma;
  float* dbeta;
  T* dresidual;  // nullptr if there was no residual.
};

}  // namespace resnet

#endif  // RESNET_NATIVE_BATCH_NORM_H_
