// The shape of a convolution, and what is done with its outputs.

#ifndef RESNET_NATIVE_CONVOLUTION_H_
#define RESNET_NATIVE_CONVOLUTION_H_

#include <cstdint>

namespace resnet {

// A convolution with a square kernel; images are [batch, height, width, channels].
//
// y[n, h, w, k] = sum over i, j, c of
//     x[n, h * stride + i - pad, w * stride + j - pad, c] * kernel[i, j, c, k]
// where x is 0 outside the image and pad = (kernel_size - 1) / 2, rounded down.
struct ConvShape {
  int64_t batch, in_height, in_width, in_channels;
  int64_t out_height, out_width, out_channels;
  int64_t kernel_size, stride;

  int64_t pad() const { return (kernel_size - 1) / 2; }
};

// Applied to each output of a forward convolution before it is rounded and stored:
// y = relu(y + bias[k] + residual[n, h, w, k]); each part is optional.
template <typename T>
struct Epilogue {
  const float* bias = nullptr;
  const T* residual = nullptr;
  bool relu = false;
};

}  // namespace resnet

#endif  // RESNET_NATIVE_CONVOLUTION_H_
