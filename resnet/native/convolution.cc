// TensorFlow ops for a convolution, optionally fused with bias, residual addition and
// ReLU, and for its gradients.
//
// The reference implementation is convolution.conv2d, by stock ops. Images are float32 or
// bfloat16, kernels and their gradients float32. The ops round the kernel themselves, so
// no casts are needed around them, and pad without a copy of the images.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "resnet/native/convolution.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"

#include "resnet/native/kernels.h"
#include "resnet/native/op_context.h"
#include "resnet/native/rounding.h"

namespace resnet {
namespace {

using tensorflow::bfloat16;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status MakeShape(const TensorShape& images, const TensorShape& kernel, int64_t stride,
                       ConvShape* shape) {
  if (images.dims() != 4 || kernel.dims() != 4 ||
      kernel.dim_size(0) != kernel.dim_size(1) ||
      kernel.dim_size(2) != images.dim_size(3) || kernel.num_elements() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "images must be [batch, height, width, channels] and the kernel [size, size, ",
        "channels, filters], both with at least one channel; got ", images.DebugString(),
        " and ", kernel.DebugString()));
  }
  shape->batch = images.dim_size(0);
  shape->in_height = images.dim_size(1);
  shape->in_width = images.dim_size(2);
  shape->in_channels = images.dim_size(3);
  shape->kernel_size = kernel.dim_size(0);
  shape->out_channels = kernel.dim_size(3);
  shape->stride = stride;
  shape->out_height = CeilDivide(shape->in_height, stride);
  shape->out_width = CeilDivide(shape->in_width, stride);
  return absl::OkStatus();
}

absl::Status CheckOutput(const ConvShape& shape, const TensorShape& output) {
  // Their number may be too large for a TensorShape.
  const int64_t expected[] = {shape.batch, shape.out_height, shape.out_width,
                              shape.out_channels};
  const auto sizes = output.dim_sizes();
  if (std::equal(sizes.begin(), sizes.end(), std::begin(expected), std::end(expected))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected outputs of shape [", absl::StrJoin(expected, ","), "]; got ",
                   output.DebugString()));
}

// Reads an optional input with a value for each filter.
absl::Status ReadPerFilter(const char* name, const OpInputList& given,
                           const ConvShape& shape, const float** values) {
  if (given.size() == 0) return absl::OkStatus();
  if (given[0].shape() != TensorShape({shape.out_channels})) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must be [", shape.out_channels, "], one value for each filter; got ",
        given[0].shape().DebugString()));
  }
  *values = given[0].flat<float>().data();
  return absl::OkStatus();
}

// Returns whether Winograd's algorithm is faster than a plain matrix product: its
// transforms take a small share of the time if there are enough channels (32 as measured).
bool WinogradIsFaster(const ConvShape& shape) {
  return shape.kernel_size == 3 && shape.stride == 1 && shape.in_channels >= 32 &&
         shape.out_channels >= 32;
}

class ConvOp : public Op {
 public:
  explicit ConvOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("stride", &stride_));
    OP_REQUIRES_OK(context, CheckStride(stride_));
  }

 protected:
  int64_t stride_;
};

template <typename T>
class ConvForwardOp : public ConvOp {
 public:
  explicit ConvForwardOp(OpKernelConstruction* context) : ConvOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("relu", &relu_));
    OP_REQUIRES_OK(context, CheckAtMostOne(context, "num_scales"));
    OP_REQUIRES_OK(context, CheckAtMostOne(context, "num_biases"));
    OP_REQUIRES_OK(context, CheckAtMostOne(context, "num_residuals"));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& images = context->input(0);
    const Tensor& kernel = context->input(1);
    OpInputList scale, bias, residual;
    OP_REQUIRES_OK(context, context->input_list("scale", &scale));
    OP_REQUIRES_OK(context, context->input_list("bias", &bias));
    OP_REQUIRES_OK(context, context->input_list("residual", &residual));
    ConvShape shape;
    OP_REQUIRES_OK(context, MakeShape(images.shape(), kernel.shape(), stride_, &shape));
    const float* factors = nullptr;
    Epilogue<typename KernelType<T>::type> epilogue;
    epilogue.relu = relu_;
    OP_REQUIRES_OK(context, ReadPerFilter("scale", scale, shape, &factors));
    OP_REQUIRES_OK(context, ReadPerFilter("bias", bias, shape, &epilogue.bias));
    if (residual.size() > 0) {
      OP_REQUIRES_OK(context, CheckOutput(shape, residual[0].shape()));
      epilogue.residual = Data<T>(residual[0]);
    }
    TensorShape out_shape;
    OP_REQUIRES_OK(context,
                   TensorShape::BuildTensorShape({shape.batch, shape.out_height,
                                                  shape.out_width, shape.out_channels},
                                                 &out_shape));
    Tensor* outputs = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, out_shape, &outputs));
    if (outputs->NumElements() == 0) return;
    OpContext op_context(context);
    const Kernels<typename KernelType<T>::type>* kernels;
    OP_REQUIRES_OK(context, FindKernels<T>(&kernels));
    const auto forward =
        WinogradIsFaster(shape) ? kernels->forward_winograd : kernels->forward_gemm;
    forward(shape, Data<T>(images), Data<float>(kernel), factors, epilogue,
            MutableData<T>(outputs), op_context);
  }

 private:
  bool relu_;
};

template <typename T>
class ConvInputGradientOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Run(OpKernelContext* context) override {
    const Tensor& images_shape = context->input(0);
    const Tensor& kernel = context->input(1);
    const Tensor& gradient = context->input(2);
    TensorShape in_shape;
    OP_REQUIRES_OK(context,
                   tensorflow::tensor::MakeShape(images_shape, &in_shape));
    ConvShape shape;
    OP_REQUIRES_OK(context, MakeShape(in_shape, kernel.shape(), stride_, &shape));
    OP_REQUIRES_OK(context, CheckOutput(shape, gradient.shape()));
    Tensor* outputs = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, in_shape, &outputs));
    if (outputs->NumElements() == 0) return;
    OpContext op_context(context);
    const Kernels<typename KernelType<T>::type>* kernels;
    OP_REQUIRES_OK(context, FindKernels<T>(&kernels));
    const auto backward = WinogradIsFaster(shape) ? kernels->input_gradient_winograd
                                                  : kernels->input_gradient_gemm;
    backward(shape, Data<T>(gradient), Data<float>(kernel), MutableData<T>(outputs),
             op_context);
  }
};

template <typename T>
class ConvKernelGradientOp : public ConvOp {
 public:
  explicit ConvKernelGradientOp(OpKernelConstruction* context) : ConvOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kernel_size", &kernel_size_));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& images = context->input(0);
    const Tensor& gradient = context->input(1);
    OP_REQUIRES(context, images.dims() == 4 && gradient.dims() == 4,
                absl::InvalidArgumentError("images and gradient must have 4 dimensions"));
    TensorShape kernel_shape;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape({kernel_size_, kernel_size_,
                                                           images.dim_size(3),
                                                           gradient.dim_size(3)},
                                                          &kernel_shape));
    ConvShape shape;
    OP_REQUIRES_OK(context, MakeShape(images.shape(), kernel_shape, stride_, &shape));
    OP_REQUIRES_OK(context, CheckOutput(shape, gradient.shape()));
    Tensor* outputs = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, kernel_shape, &outputs));
    if (gradient.NumElements() == 0) {
      outputs->flat<float>().setZero();
      return;
    }
    OpContext op_context(context);
    const Kernels<typename KernelType<T>::type>* kernels;
    OP_REQUIRES_OK(context, FindKernels<T>(&kernels));
    const auto backward = WinogradIsFaster(shape) ? kernels->kernel_gradient_winograd
                                                  : kernels->kernel_gradient_gemm;
    backward(shape, Data<T>(images), Data<T>(gradient), MutableData<float>(outputs),
             op_context);
  }

 private:
  int64_t kernel_size_;
};

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status OutputShape(InferenceContext* context) {
  ShapeHandle images, kernel;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &images));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 4, &kernel));
  int64_t stride;
  TF_RETURN_IF_ERROR(context->GetAttr("stride", &stride));
  TF_RETURN_IF_ERROR(CheckStride(stride));
  DimensionHandle sides[2];
  for (int i = 0; i < 2; ++i) {
    TF_RETURN_IF_ERROR(context->Add(context->Dim(images, 1 + i), stride - 1, &sides[i]));
    TF_RETURN_IF_ERROR(context->Divide(sides[i], stride, false, &sides[i]));
  }
  context->set_output(0, context->MakeShape({context->Dim(images, 0), sides[0], sides[1],
                                             context->Dim(kernel, 3)}));
  return absl::OkStatus();
}

absl::Status InputGradientShape(InferenceContext* context) {
  ShapeHandle images;
  TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(0, &images));
  TF_RETURN_IF_ERROR(context->WithRank(images, 4, &images));
  context->set_output(0, images);
  return absl::OkStatus();
}

absl::Status KernelGradientShape(InferenceContext* context) {
  ShapeHandle images, gradient;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &images));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 4, &gradient));
  int64_t kernel_size;
  TF_RETURN_IF_ERROR(context->GetAttr("kernel_size", &kernel_size));
  context->set_output(
      0, context->MakeShape({context->MakeDim(kernel_size), context->MakeDim(kernel_size),
                             context->Dim(images, 3), context->Dim(gradient, 3)}));
  return absl::OkStatus();
}

REGISTER_OP("ResnetConv2D")
    .Input("images: T")
    .Input("kernel: float")
    .Input("scale: num_scales * float")
    .Input("bias: num_biases * float")
    .Input("residual: num_residuals * T")
    .Output("outputs: T")
    .Attr("stride: int >= 1")
    .Attr("relu: bool = false")
    .Attr("num_scales: int >= 0 = 0")
    .Attr("num_biases: int >= 0 = 0")
    .Attr("num_residuals: int >= 0 = 0")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn(OutputShape);

REGISTER_OP("ResnetConv2DInputGradient")
    .Input("images_shape: int32")
    .Input("kernel: float")
    .Input("gradient: T")
    .Output("images_gradient: T")
    .Attr("stride: int >= 1")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn(InputGradientShape);

REGISTER_OP("ResnetConv2DKernelGradient")
    .Input("images: T")
    .Input("gradient: T")
    .Output("kernel_gradient: float")
    .Attr("kernel_size: int >= 1")
    .Attr("stride: int >= 1")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn(KernelGradientShape);

#define REGISTER_KERNELS(T)                                                              \
  REGISTER_KERNEL_BUILDER(                                                               \
      Name("ResnetConv2D").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),        \
      ConvForwardOp<T>);                                                                 \
  REGISTER_KERNEL_BUILDER(Name("ResnetConv2DInputGradient")                              \
                              .Device(tensorflow::DEVICE_CPU)                            \
                              .TypeConstraint<T>("T"),                                   \
                          ConvInputGradientOp<T>);                                       \
  REGISTER_KERNEL_BUILDER(Name("ResnetConv2DKernelGradient")                             \
                              .Device(tensorflow::DEVICE_CPU)                            \
                              .TypeConstraint<T>("T"),                                   \
                          ConvKernelGradientOp<T>)
REGISTER_KERNELS(float);
REGISTER_KERNELS(bfloat16);

}  // namespace
}  // namespace resnet
