// TensorFlow ops for the mean over all positions of each image:
//
//   y[n, c] = sum over i and j of x[n, i, j, c] / (height * width)
//
// added up in float32. The reference implementation is pooling.global_mean in
// models/layers/pooling.py, by stock ops.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"

#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::bfloat16;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

template <typename T>
class MeanOp : public Op {
 public:
  using Op::Op;

  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES(context, x.dims() == 4,
                absl::InvalidArgumentError(
                    absl::StrCat("x must be [batch, height, width, channels]; got ",
                                 x.shape().DebugString())));
    const int64_t positions = x.dim_size(1) * x.dim_size(2), channels = x.dim_size(3);
    TensorShape shape;
    OP_REQUIRES_OK(context,
                   TensorShape::BuildTensorShape({x.dim_size(0), channels}, &shape));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &y));
    const auto kernel = MapKernelsOf<T>().mean;
    ForEach(x.dim_size(0), OpContext(context), [&](int64_t i) {
      kernel(Data<T>(x) + i * positions * channels, positions, channels,
             MutableData<T>(y) + i * channels);
    });
  }
};

template <typename T>
class MeanGradOp : public Op {
 public:
  using Op::Op;

  void Run(OpKernelContext* context) override {
    const Tensor& dy = context->input(0);
    TensorShape shape;
    OP_REQUIRES_OK(context, tensorflow::tensor::MakeShape(context->input(1), &shape));
    OP_REQUIRES(
        context,
        shape.dims() == 4 &&
            dy.shape() == TensorShape({shape.dim_size(0), shape.dim_size(3)}),
        absl::InvalidArgumentError(absl::StrCat(
            "dy must be [batch, channels] of images of ", shape.DebugString(), "; got ",
            dy.shape().DebugString())));
    const int64_t positions = shape.dim_size(1) * shape.dim_size(2);
    const int64_t channels = shape.dim_size(3);
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &dx));
    if (positions == 0) return;
    const auto kernel = MapKernelsOf<T>().mean_grad;
    ForEach(shape.dim_size(0), OpContext(context), [&](int64_t i) {
      kernel(Data<T>(dy) + i * channels, positions, channels,
             MutableData<T>(dx) + i * positions * channels);
    });
  }
};

REGISTER_OP("ResnetGlobalMean")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle images;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &images));
      context->set_output(
          0, context->MakeShape({context->Dim(images, 0), context->Dim(images, 3)}));
      return absl::OkStatus();
    });

REGISTER_OP("ResnetGlobalMeanGrad")
    .Input("dy: T")
    .Input("x_shape: int32")
    .Output("dx: T")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle images;
      TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(1, &images));
      context->set_output(0, images);
      return absl::OkStatus();
    });

#define REGISTER_KERNELS(T)                                                              \
  REGISTER_KERNEL_BUILDER(                                                               \
      Name("ResnetGlobalMean").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),    \
      MeanOp<T>);                                                                        \
  REGISTER_KERNEL_BUILDER(                                                               \
      Name("ResnetGlobalMeanGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),\
      MeanGradOp<T>)

REGISTER_KERNELS(float);
REGISTER_KERNELS(bfloat16);

}  // namespace
}  // namespace resnet
