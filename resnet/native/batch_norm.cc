// TensorFlow ops for batch normalization in training mode, fused with residual addition
// and ReLU, and for its gradient.
//
// The reference implementation is normalization.batch_norm, by stock ops.

#include "resnet/native/batch_norm.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::bfloat16;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

int64_t Channels(const TensorShape& shape) {
  return shape.dims() == 0 ? 0 : shape.dim_size(shape.dims() - 1);
}

int64_t Rows(const TensorShape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.dims(); ++i) rows *= shape.dim_size(i);
  return rows;
}

absl::Status CheckX(const TensorShape& x) {
  if (x.dims() >= 2 && Channels(x) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("x must be [..., channels]; got ", x.DebugString()));
}

absl::Status CheckOfChannels(const char* name, const Tensor& tensor, int64_t channels) {
  if (tensor.shape() == TensorShape({channels})) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be [", channels,
                                                 "], one for each channel of x; got ",
                                                 tensor.shape().DebugString()));
}

absl::Status CheckLikeX(const char* name, const OpInputList& tensors,
                        const TensorShape& x) {
  for (const Tensor& tensor : tensors) {
    if (tensor.shape() == x) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " must be shaped like x, ",
                                                   x.DebugString(), "; got ",
                                                   tensor.shape().DebugString()));
  }
  return absl::OkStatus();
}

template <typename T>
class BatchNormOp : public Op {
 public:
  explicit BatchNormOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES_OK(context, context->GetAttr("relu", &relu_));
    OP_REQUIRES_OK(context, CheckAtMostOne(context, "num_residuals"));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Tensor& gamma = context->input(1);
    const Tensor& beta = context->input(2);
    OpInputList residuals;
    OpOutputList ys;
    OP_REQUIRES_OK(context, context->input_list("residual", &residuals));
    OP_REQUIRES_OK(context, context->output_list("y", &ys));
    OP_REQUIRES_OK(context, CheckX(x.shape()));
    const int64_t rows = Rows(x.shape()), channels = Channels(x.shape());
    OP_REQUIRES_OK(context, CheckOfChannels("gamma", gamma, channels));
    OP_REQUIRES_OK(context, CheckOfChannels("beta", beta, channels));
    OP_REQUIRES_OK(context, CheckLikeX("residual", residuals, x.shape()));
    const bool wants_positive = relu_ && residuals.size() > 0;

    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, ys.allocate(0, x.shape(), &y));
    for (int copy = 1; copy < ys.size(); ++copy) ys.set(copy, *y);
    Tensor *mean = nullptr, *variance = nullptr, *inverse_stddev = nullptr;
    Tensor* positive = nullptr;
    const TensorShape of_channels({channels});
    using Number = typename KernelType<T>::type;
    const int64_t bytes = wants_positive ? PositiveBytes<Number>(rows, channels) : 0;
    OP_REQUIRES_OK(context, context->allocate_output("mean", of_channels, &mean));
    OP_REQUIRES_OK(context, context->allocate_output("variance", of_channels, &variance));
    OP_REQUIRES_OK(
        context, context->allocate_output("inverse_stddev", of_channels, &inverse_stddev));
    OP_REQUIRES_OK(
        context, context->allocate_output("positive", TensorShape({bytes}), &positive));

    BatchNormArguments<Number> arguments;
    arguments.rows = rows;
    arguments.channels = channels;
    arguments.x = Data<T>(x);
    arguments.gamma = Data<float>(gamma);
    arguments.beta = Data<float>(beta);
    arguments.residual = residuals.size() > 0 ? Data<T>(residuals[0]) : nullptr;
    arguments.epsilon = epsilon_;
    arguments.relu = relu_;
    arguments.y = MutableData<T>(y);
    arguments.mean = MutableData<float>(mean);
    arguments.unbiased_variance = MutableData<float>(variance);
    arguments.inverse_stddev = MutableData<float>(inverse_stddev);
    arguments.positive = wants_positive ? positive->flat<uint8_t>().data() : nullptr;
    OpContext op_context(context);
    const Kernels<Number>* kernels;
    OP_REQUIRES_OK(context, FindKernels<T>(&kernels));
    kernels->batch_norm(arguments, op_context);
  }

 private:
  float epsilon_;
  bool relu_;
};

template <typename T>
class NormalizeOp : public Op {
 public:
  explicit NormalizeOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("relu", &relu_));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES_OK(context, CheckX(x.shape()));
    const int64_t rows = Rows(x.shape()), channels = Channels(x.shape());
    const char* const names[] = {"gamma", "beta", "mean", "inverse_stddev"};
    for (int i = 0; i < 4; ++i) {
      OP_REQUIRES_OK(context, CheckOfChannels(names[i], context->input(1 + i), channels));
    }
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
    NormalizeArguments<typename KernelType<T>::type> arguments;
    arguments.rows = rows;
    arguments.channels = channels;
    arguments.x = Data<T>(x);
    arguments.gamma = Data<float>(context->input(1));
    arguments.beta = Data<float>(context->input(2));
    arguments.residual = nullptr;
    arguments.relu = relu_;
    arguments.y = MutableData<T>(y);
    arguments.positive = nullptr;
    OpContext op_context(context);
    const Kernels<typename KernelType<T>::type>* kernels;
    OP_REQUIRES_OK(context, FindKernels<T>(&kernels));
    kernels->normalize(arguments, Data<float>(context->input(3)),
                       Data<float>(context->input(4)), op_context);
  }

 private:
  bool relu_;
};

template <typename T>
class BatchNormGradOp : public Op {
 public:
  explicit BatchNormGradOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("relu", &relu_));
    OP_REQUIRES_OK(context, CheckAtMostOne(context, "num_residuals"));
  }

  void Run(OpKernelContext* context) override {
    OpInputList dys;
    OpOutputList dresiduals;
    const Tensor *x = nullptr, *positive = nullptr;
    const Tensor *gamma = nullptr, *beta = nullptr;
    const Tensor *mean = nullptr, *inverse_stddev = nullptr;
    OP_REQUIRES_OK(context, context->input_list("dy", &dys));
    OP_REQUIRES_OK(context, context->output_list("dresidual", &dresiduals));
    OP_REQUIRES_OK(context, context->input("x", &x));
    OP_REQUIRES_OK(context, context->input("positive", &positive));
    OP_REQUIRES_OK(context, context->input("gamma", &gamma));
    OP_REQUIRES_OK(context, context->input("beta", &beta));
    OP_REQUIRES_OK(context, context->input("mean", &mean));
    OP_REQUIRES_OK(context, context->input("inverse_stddev", &inverse_stddev));
    OP_REQUIRES_OK(context, CheckX(x->shape()));
    const TensorShape& shape = x->shape();
    const int64_t rows = Rows(shape), channels = Channels(shape);
    OP_REQUIRES_OK(context, CheckLikeX("dy", dys, shape));
    OP_REQUIRES_OK(context, CheckOfChannels("gamma", *gamma, channels));
    OP_REQUIRES_OK(context, CheckOfChannels("beta", *beta, channels));
    OP_REQUIRES_OK(context, CheckOfChannels("mean", *mean, channels));
    OP_REQUIRES_OK(context, CheckOfChannels("inverse_stddev", *inverse_stddev, channels));
    using Number = typename KernelType<T>::type;
    const bool has_residual = dresiduals.size() > 0;
    const int64_t bytes =
        has_residual && relu_ ? PositiveBytes<Number>(rows, channels) : 0;
    OP_REQUIRES(context, positive->NumElements() == bytes,
                absl::InvalidArgumentError("positive must be of ResnetBatchNorm"));

    // Outputs reuse the memory of inputs that no other op needs. That memory is in the
    // cache, or at least needn't be fetched before it is overwritten.
    Tensor *dx = nullptr, *dresidual = nullptr, *dgamma = nullptr, *dbeta = nullptr;
    std::vector<int> candidates(dys.size());
    std::iota(candidates.begin(), candidates.end(), 0);
    const int index_of_x = dys.size();
    if (has_residual) {
      int taken = -1;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  candidates, 3, shape, &dresidual, &taken));
      if (taken >= 0) candidates.erase(candidates.begin() + taken);
      // With a residual the second pass reads x, and none of the dys.
      candidates.insert(candidates.begin(), index_of_x);
    } else {
      candidates.push_back(index_of_x);
    }
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output(candidates, 0, shape, &dx));
    const TensorShape of_channels({channels});
    OP_REQUIRES_OK(context, context->allocate_output("dgamma", of_channels, &dgamma));
    OP_REQUIRES_OK(context, context->allocate_output("dbeta", of_channels, &dbeta));

    std::vector<const Number*> dy_data;
    for (const Tensor& dy : dys) dy_data.push_back(Data<T>(dy));
    BatchNormGradArguments<Number> arguments;
    arguments.rows = rows;
    arguments.channels = channels;
    arguments.dys = dy_data.data();
    arguments.num_dys = dys.size();
    arguments.x = Data<T>(*x);
    arguments.positive = positive->flat<uint8_t>().data();
    arguments.gamma = Data<float>(*gamma);
    arguments.beta = Data<float>(*beta);
    arguments.mean = Data<float>(*mean);
    arguments.inverse_stddev = Data<float>(*inverse_stddev);
    arguments.relu = relu_;
    arguments.dx = MutableData<T>(dx);
    arguments.dgamma = MutableData<float>(dgamma);
    arguments.dbeta = MutableData<float>(dbeta);
    arguments.dresidual = has_residual ? MutableData<T>(dresidual) : nullptr;
    OpContext op_context(context);
    const Kernels<Number>* kernels;
    OP_REQUIRES_OK(context, FindKernels<T>(&kernels));
    kernels->batch_norm_grad(arguments, op_context);
  }

 private:
  bool relu_;
};

REGISTER_OP("ResnetBatchNorm")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("residual: num_residuals * T")
    .Output("y: num_copies * T")
    .Output("mean: float")
    .Output("variance: float")
    .Output("inverse_stddev: float")
    .Output("positive: uint8")
    .Attr("T: {float, bfloat16}")
    .Attr("num_residuals: int >= 0")
    .Attr("num_copies: int >= 1")
    .Attr("epsilon: float")
    .Attr("relu: bool")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x, of_channels = context->input(1);
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 2, &x));
      int num_copies;
      TF_RETURN_IF_ERROR(context->GetAttr("num_copies", &num_copies));
      for (int copy = 0; copy < num_copies; ++copy) context->set_output(copy, x);
      for (int i = 0; i < 3; ++i) context->set_output(num_copies + i, of_channels);
      context->set_output(num_copies + 3,
                          context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_OP("ResnetNormalize")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("inverse_stddev: float")
    .Output("y: T")
    .Attr("T: {float, bfloat16}")
    .Attr("relu: bool")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 2, &x));
      context->set_output(0, x);
      return absl::OkStatus();
    });

REGISTER_OP("ResnetBatchNormGrad")
    .Input("dy: num_copies * T")
    .Input("x: T")
    .Input("positive: uint8")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("inverse_stddev: float")
    .Output("dx: T")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Output("dresidual: num_residuals * T")
    .Attr("T: {float, bfloat16}")
    .Attr("num_residuals: int >= 0")
    .Attr("num_copies: int >= 1")
    .Attr("relu: bool")
    .SetShapeFn([](InferenceContext* context) {
      const ShapeHandle x = context->input(context->num_inputs() - 6);
      const ShapeHandle of_channels = context->input(context->num_inputs() - 4);
      context->set_output(0, x);
      context->set_output(1, of_channels);
      context->set_output(2, of_channels);
      for (int i = 3; i < context->num_outputs(); ++i) context->set_output(i, x);
      return absl::OkStatus();
    });

#define REGISTER_KERNELS(T)                                                             \
  REGISTER_KERNEL_BUILDER(                                                              \
      Name("ResnetBatchNorm").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),    \
      BatchNormOp<T>);                                                                  \
  REGISTER_KERNEL_BUILDER(                                                              \
      Name("ResnetNormalize").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),    \
      NormalizeOp<T>);                                                                  \
  REGISTER_KERNEL_BUILDER(                                                              \
      Name("ResnetBatchNormGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),\
      BatchNormGradOp<T>)

REGISTER_KERNELS(float);
REGISTER_KERNELS(bfloat16);

}  // namespace
}  // namespace resnet
