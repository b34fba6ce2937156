// A TensorFlow op that resizes a decoded image, optionally flips it horizontally, and
// normalizes it, in one pass over its bytes.
//
// The reference implementation is preprocessing.resize_with_stock_ops. The filter is
// TensorFlow 1's bicubic one, which the published runs used: Keys' cubic with A = -0.75,
// corners not aligned, no half-pixel centers, positions rounded to 1/1024 of a pixel.
// Source: tensorflow/core/kernels/image/resize_bicubic_op.cc (its arithmetic).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/for_each_cpu.h"
#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int kChannels = 3;
constexpr int kTaps = 4;
constexpr float kA = -0.75f;
constexpr int64_t kMaxSide = 1 << 28;  // Of which three channels still fit in an int.
constexpr int kSteps = 1024;  // Positions are rounded to 1 / kSteps of a pixel.

// The four input pixels that contribute to an output position, and their weights.
struct Taps {
  int index[kTaps];
  float weight[kTaps];
};

float NearWeight(float x) { return ((kA + 2) * x - (kA + 3)) * x * x + 1; }
float FarWeight(float x) { return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA; }

std::vector<Taps> MakeTaps(int in_size, int out_size) {
  std::vector<Taps> taps(out_size);
  const float scale = static_cast<float>(in_size) / out_size;
  for (int out = 0; out < out_size; ++out) {
    const float position = scale * out;
    const int left = static_cast<int>(std::floor(position));
    const float x = std::lrint((position - left) * kSteps) / float{kSteps};
    Taps& tap = taps[out];
    tap.weight[0] = FarWeight(x + 1);
    tap.weight[1] = NearWeight(x);
    tap.weight[2] = NearWeight(1 - x);
    tap.weight[3] = FarWeight(2 - x);
    for (int i = 0; i < kTaps; ++i) {
      tap.index[i] = std::min(std::max(left - 1 + i, 0), in_size - 1);
    }
  }
  return taps;
}

// Writes the weighted sum of four rows of pixels.
FOR_EACH_CPU void SumRows(const uint8_t* a, const uint8_t* b, const uint8_t* c,
                          const uint8_t* d, const float* weight, int64_t size,
                          float* __restrict__ sum) {
  const float wa = weight[0], wb = weight[1], wc = weight[2], wd = weight[3];
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = wa * a[i] + wb * b[i] + wc * c[i] + wd * d[i];
  }
}

// The three channels of a pixel, and an unused lane.
typedef float Pixel __attribute__((vector_size(16), aligned(4), may_alias));

// Writes one output row: normalized weighted sums of four pixels of `row`.
FOR_EACH_CPU void SumColumns(const float* row, const Taps* taps, int size, bool mirror,
                             Pixel scale, Pixel shift, float* out) {
  for (int x = 0; x < size; ++x) {
    const Taps& tap = taps[x];
    Pixel sum = *reinterpret_cast<const Pixel*>(row + kChannels * tap.index[0]) *
                tap.weight[0];
    for (int i = 1; i < kTaps; ++i) {
      sum += *reinterpret_cast<const Pixel*>(row + kChannels * tap.index[i]) *
             tap.weight[i];
    }
    sum = sum * scale + shift;
    float* pixel = out + kChannels * (mirror ? size - 1 - x : x);
    pixel[0] = sum[0];
    pixel[1] = sum[1];
    pixel[2] = sum[2];
  }
}

class ResizeBicubicOp : public Op {
 public:
  explicit ResizeBicubicOp(OpKernelConstruction* context) : Op(context) {
    std::vector<float> mean, stddev;
    OP_REQUIRES_OK(context, context->GetAttr("mean", &mean));
    OP_REQUIRES_OK(context, context->GetAttr("stddev", &stddev));
    OP_REQUIRES(context, mean.size() == kChannels && stddev.size() == kChannels,
                absl::InvalidArgumentError("mean and stddev have 3 values each"));
    for (int c = 0; c < kChannels; ++c) {
      scale_[c] = 1 / stddev[c];
      shift_[c] = -mean[c] / stddev[c];
    }
  }

  void Run(OpKernelContext* context) override {
    const Tensor& image = context->input(0);
    OP_REQUIRES(context,
                image.dims() == 3 && image.dim_size(2) == kChannels &&
                    image.NumElements() > 0,
                absl::InvalidArgumentError(
                    absl::StrCat("image must be [height, width, 3]; got ",
                                 image.shape().DebugString())));
    OP_REQUIRES(context,
                std::max(image.dim_size(0), image.dim_size(1)) <= kMaxSide,
                absl::InvalidArgumentError(absl::StrCat(
                    "image must have at most ", kMaxSide, " rows and columns; got ",
                    image.shape().DebugString())));
    OP_REQUIRES(context, context->input(1).dims() == 1 && context->input(2).dims() == 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "size must be a vector and mirror a scalar; got ",
                    context->input(1).shape().DebugString(), " and ",
                    context->input(2).shape().DebugString())));
    const int height = image.dim_size(0);
    const int width = image.dim_size(1);
    const auto size = context->input(1).vec<int32_t>();
    OP_REQUIRES(context,
                size.size() == 2 && std::min(size(0), size(1)) > 0 &&
                    std::max(size(0), size(1)) <= kMaxSide,
                absl::InvalidArgumentError(
                    absl::StrCat("size must be two numbers from 1 to ", kMaxSide)));
    const bool mirror = context->input(2).scalar<bool>()();
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({size(0), size(1), kChannels}), &output));

    const std::vector<Taps> rows = MakeTaps(height, size(0));
    const std::vector<Taps> columns = MakeTaps(width, size(1));
    const uint8_t* in = image.flat<uint8_t>().data();
    float* out = output->flat<float>().data();
    const int64_t stride = int64_t{kChannels} * width;  // Images may exceed 2 GiB.
    std::vector<float> row(stride + 1);  // One more for the unused lane of the last pixel.
    for (int y = 0; y < size(0); ++y) {
      const Taps& tap = rows[y];
      SumRows(in + stride * tap.index[0], in + stride * tap.index[1],
              in + stride * tap.index[2], in + stride * tap.index[3], tap.weight,
              stride, row.data());
      SumColumns(row.data(), columns.data(), size(1), mirror, scale_, shift_,
                 out + int64_t{kChannels} * size(1) * y);
    }
  }

 private:
  Pixel scale_ = {0, 0, 0, 0};
  Pixel shift_ = {0, 0, 0, 0};
};

REGISTER_OP("ResnetResizeBicubic")
    .Input("image: uint8")
    .Input("size: int32")
    .Input("mirror: bool")
    .Output("resized: float")
    .Attr("mean: list(float)")
    .Attr("stddev: list(float)")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle size;
      TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(1, &size));
      TF_RETURN_IF_ERROR(context->WithRank(size, 2, &size));
      TF_RETURN_IF_ERROR(
          context->Concatenate(size, context->Vector(kChannels), &size));
      context->set_output(0, size);
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetResizeBicubic").Device(tensorflow::DEVICE_CPU),
                        ResizeBicubicOp);

}  // namespace
}  // namespace resnet
