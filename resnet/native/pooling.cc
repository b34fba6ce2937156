// TensorFlow ops for max pooling.
//
//   y[n, i, j, c] = max over p, q of x[n, i * stride + p - top, j * stride + q - left, c]
//
// for 0 <= p < window height and 0 <= q < window width; positions outside of the image are
// left out. The reference implementation is pooling.max_pool in
// models/layers/pooling.py, by stock ops.
//
// The forward op also returns where each maximum comes from, p * window width + q, the
// first place of several equal ones. With it the gradient needs neither x nor y.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"

#include "resnet/native/op_context.h"
#include "resnet/native/pooling.h"
#include "resnet/native/rounding.h"

namespace resnet {
namespace {

using tensorflow::bfloat16;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr int64_t kMostPlaces = 256;  // In a window, since a place is a byte.

// The attributes of both max pooling ops.
struct PoolAttributes {
  std::vector<int64_t> window;  // Height and width.
  int64_t stride;
  std::string padding;

  template <typename AnyContext>
  absl::Status Read(AnyContext* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("window", &window));
    TF_RETURN_IF_ERROR(context->GetAttr("stride", &stride));
    TF_RETURN_IF_ERROR(CheckStride(stride));
    TF_RETURN_IF_ERROR(context->GetAttr("padding", &padding));
    if (window.size() == 2 && window[0] > 0 && window[1] > 0 &&
        window[0] <= kMostPlaces / window[1]) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("window must be a height and a width, with at most ", kMostPlaces,
                     " positions; got ", window.size(), " numbers, or more positions"));
  }

  // The windows along one side of the images.
  Windows Along(int64_t in, int64_t size) const {
    Windows windows{in, 0, size, stride, 0};
    if (padding == "valid") {
      windows.out = in < size ? 0 : (in - size) / stride + 1;
    } else if (padding == "symmetric") {
      windows.before = (size - 1) / 2;
      const int64_t padded = in + 2 * windows.before;
      windows.out = padded < size ? 0 : (padded - size) / stride + 1;
    } else {
      windows.out = CeilDivide(in, stride);
      const int64_t outside = (windows.out - 1) * stride + size - in;
      windows.before = std::max<int64_t>(outside, 0) / 2;
    }
    return windows;
  }

  // The shape for images of [batch, height, width, channels].
  absl::Status Apply(const TensorShape& images, PoolShape* shape) const {
    if (images.dims() != 4) {
      return absl::InvalidArgumentError(absl::StrCat(
          "images must be [batch, height, width, channels]; got ", images.DebugString()));
    }
    *shape = {images.dim_size(0), images.dim_size(3), Along(images.dim_size(1), window[0]),
              Along(images.dim_size(2), window[1])};
    return absl::OkStatus();
  }
};

TensorShape OutputShape(const PoolShape& shape) {
  return TensorShape({shape.batch, shape.rows.out, shape.columns.out, shape.channels});
}

template <typename T>
class MaxPoolOp : public Op {
 public:
  explicit MaxPoolOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    PoolShape shape;
    OP_REQUIRES_OK(context, attributes_.Apply(x.shape(), &shape));
    Tensor *y = nullptr, *places = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, OutputShape(shape), &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, OutputShape(shape), &places));
    const int64_t of_row = shape.columns.out * shape.channels;
    const int64_t of_image = shape.rows.in * shape.columns.in * shape.channels;
    const auto kernel = MapKernelsOf<T>().max_pool;
    ForEach(shape.batch * shape.rows.out, OpContext(context), [&](int64_t i) {
      kernel(shape, Data<T>(x) + i / shape.rows.out * of_image, i % shape.rows.out,
             MutableData<T>(y) + i * of_row, places->flat<uint8_t>().data() + i * of_row);
    });
  }

 private:
  PoolAttributes attributes_;
};

template <typename T>
class MaxPoolGradOp : public Op {
 public:
  explicit MaxPoolGradOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& dy = context->input(0);
    const Tensor& places = context->input(1);
    TensorShape x_shape;
    OP_REQUIRES_OK(context,
                   tensorflow::tensor::MakeShape(context->input(2), &x_shape));
    PoolShape shape;
    OP_REQUIRES_OK(context, attributes_.Apply(x_shape, &shape));
    const TensorShape expected = OutputShape(shape);
    OP_REQUIRES(context, dy.shape() == expected && places.shape() == expected,
                absl::InvalidArgumentError(absl::StrCat(
                    "dy and places must be ", expected.DebugString(), "; got ",
                    dy.shape().DebugString(), " and ", places.shape().DebugString())));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, x_shape, &dx));
    const int64_t of_row = shape.columns.in * shape.channels;
    const int64_t of_image = shape.rows.out * shape.columns.out * shape.channels;
    const auto kernel = MapKernelsOf<T>().max_pool_grad;
    ForEach(shape.batch * shape.rows.in, OpContext(context), [&](int64_t i) {
      const int64_t first = i / shape.rows.in * of_image;
      kernel(shape, Data<T>(dy) + first, places.flat<uint8_t>().data() + first,
             i % shape.rows.in, MutableData<T>(dx) + i * of_row);
    });
  }

 private:
  PoolAttributes attributes_;
};

absl::Status InferPooledShape(InferenceContext* context) {
  PoolAttributes attributes;
  TF_RETURN_IF_ERROR(attributes.Read(context));
  ShapeHandle images;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &images));
  std::vector<DimensionHandle> sides;
  for (int axis : {1, 2}) {
    const DimensionHandle side = context->Dim(images, axis);
    sides.push_back(context->ValueKnown(side)
                        ? context->MakeDim(attributes.Along(context->Value(side),
                                                            attributes.window[axis - 1])
                                               .out)
                        : context->UnknownDim());
  }
  const ShapeHandle pooled = context->MakeShape(
      {context->Dim(images, 0), sides[0], sides[1], context->Dim(images, 3)});
  context->set_output(0, pooled);
  context->set_output(1, pooled);
  return absl::OkStatus();
}

REGISTER_OP("ResnetMaxPool")
    .Input("x: T")
    .Output("y: T")
    .Output("places: uint8")
    .Attr("T: {float, bfloat16}")
    .Attr("window: list(int) >= 2")
    .Attr("stride: int >= 1")
    .Attr("padding: {'same', 'valid', 'symmetric'}")
    .SetShapeFn(InferPooledShape);

REGISTER_OP("ResnetMaxPoolGrad")
    .Input("dy: T")
    .Input("places: uint8")
    .Input("x_shape: int32")
    .Output("dx: T")
    .Attr("T: {float, bfloat16}")
    .Attr("window: list(int) >= 2")
    .Attr("stride: int >= 1")
    .Attr("padding: {'same', 'valid', 'symmetric'}")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle images;
      TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(2, &images));
      context->set_output(0, images);
      return absl::OkStatus();
    });

#define REGISTER_KERNELS(T)                                                           \
  REGISTER_KERNEL_BUILDER(                                                            \
      Name("ResnetMaxPool").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),    \
      MaxPoolOp<T>);                                                                  \
  REGISTER_KERNEL_BUILDER(                                                            \
      Name("ResnetMaxPoolGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),\
      MaxPoolGradOp<T>)

REGISTER_KERNELS(float);
REGISTER_KERNELS(bfloat16);

}  // namespace
}  // namespace resnet
