// TensorFlow ops that apply ReLU, SiLU or Mish to feature maps in one pass, with the gate
// of squeeze-and-excitation and the residual in front of it:
//
//   y[n, p, c] = activation(gate[n, c] * x[n, p, c] + residual[n, p, c])
//
// for image n, position p and channel c; without a gate y = activation(x). The reference
// implementation is activations.activate in models/layers/activations.py, by stock ops.

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/activation.h"
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

absl::Status ReadKind(OpKernelConstruction* context, Kind* kind) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("activation", &name));
  *kind = name == "relu" ? Kind::kRelu : name == "silu" ? Kind::kSilu : Kind::kMish;
  return absl::OkStatus();
}

// The gate and the residual: both or neither, of the shapes that x needs.
template <typename T>
absl::Status ReadGate(OpKernelContext* context, const Tensor& x,
                      ActivationArguments<typename KernelType<T>::type>* arguments) {
  OpInputList gates, residuals;
  TF_RETURN_IF_ERROR(context->input_list("gate", &gates));
  TF_RETURN_IF_ERROR(context->input_list("residual", &residuals));
  if (gates.size() > 1 || gates.size() != residuals.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected one gate and one residual, or neither; got ",
                     gates.size(), " and ", residuals.size()));
  }
  if (x.dims() != 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        "x must be [batch, height, width, channels]; got ", x.shape().DebugString()));
  }
  arguments->rows = x.dim_size(1) * x.dim_size(2);
  arguments->channels = x.dim_size(3);
  arguments->x = Data<T>(x);
  arguments->gate = nullptr;
  arguments->residual = nullptr;
  if (gates.size() == 0) return absl::OkStatus();
  TensorShape of_gate;
  TF_RETURN_IF_ERROR(
      TensorShape::BuildTensorShape({x.dim_size(0), x.dim_size(3)}, &of_gate));
  if (gates[0].shape() != of_gate || residuals[0].shape() != x.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gate and residual must be ", of_gate.DebugString(), " and ",
        x.shape().DebugString(), "; got ", gates[0].shape().DebugString(), " and ",
        residuals[0].shape().DebugString()));
  }
  arguments->gate = Data<float>(gates[0]);
  arguments->residual = Data<T>(residuals[0]);
  return absl::OkStatus();
}

// The arguments for one image.
template <typename T>
ActivationArguments<T> OfImage(ActivationArguments<T> arguments, int64_t image) {
  const int64_t first = image * arguments.rows * arguments.channels;
  arguments.x += first;
  if (arguments.y != nullptr) arguments.y += first;
  for (int i = 0; i < arguments.num_dys; ++i) arguments.dy[i] += first;
  if (arguments.dx != nullptr) arguments.dx += first;
  if (arguments.gate == nullptr) return arguments;
  arguments.residual += first;
  arguments.gate += image * arguments.channels;
  if (arguments.dresidual != nullptr) arguments.dresidual += first;
  if (arguments.dgate != nullptr) arguments.dgate += image * arguments.channels;
  return arguments;
}

template <typename T>
class ActivateOp : public Op {
 public:
  explicit ActivateOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, ReadKind(context, &kind_));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    ActivationArguments<typename KernelType<T>::type> arguments{};
    OP_REQUIRES_OK(context, ReadGate<T>(context, x, &arguments));
    OpOutputList ys;
    OP_REQUIRES_OK(context, context->output_list("y", &ys));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, ys.allocate(0, x.shape(), &y));
    for (int copy = 1; copy < ys.size(); ++copy) ys.set(copy, *y);
    arguments.y = MutableData<T>(y);
    const auto& kernels = MapKernelsOf<T>();
    OpContext(context).Run(x.dim_size(0), [&](int64_t image) {
      kernels.activate(OfImage(arguments, image), kind_);
    });
  }

 private:
  Kind kind_;
};

template <typename T>
class ActivateGradOp : public Op {
 public:
  explicit ActivateGradOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, ReadKind(context, &kind_));
  }

  void Run(OpKernelContext* context) override {
    OpInputList dys;
    OP_REQUIRES_OK(context, context->input_list("dy", &dys));
    const Tensor& x = context->input(dys.size());
    ActivationArguments<typename KernelType<T>::type> arguments{};
    OP_REQUIRES_OK(context, ReadGate<T>(context, x, &arguments));
    OP_REQUIRES(context, dys.size() <= kMostCopies,
                absl::InvalidArgumentError(absl::StrCat(
                    "expected at most ", kMostCopies, " dys; got ", dys.size())));
    for (const Tensor& dy : dys) {
      OP_REQUIRES(context, dy.shape() == x.shape(),
                  absl::InvalidArgumentError(
                      absl::StrCat("dy must be shaped like x, ", x.shape().DebugString(),
                                   "; got ", dy.shape().DebugString())));
      arguments.dy[arguments.num_dys++] = Data<T>(dy);
    }
    // dx may take the memory of a gradient that no other op needs.
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 0, x.shape(), &dx));
    arguments.dx = MutableData<T>(dx);
    if (arguments.gate != nullptr) {
      OpOutputList dgates, dresiduals;
      Tensor *dgate = nullptr, *dresidual = nullptr;
      OP_REQUIRES_OK(context, context->output_list("dgate", &dgates));
      OP_REQUIRES_OK(context, context->output_list("dresidual", &dresiduals));
      const TensorShape of_gate({x.dim_size(0), x.dim_size(3)});  // `ReadGate` checked it.
      OP_REQUIRES_OK(context, dgates.allocate(0, of_gate, &dgate));
      OP_REQUIRES_OK(context, dresiduals.allocate(0, x.shape(), &dresidual));
      arguments.dgate = MutableData<float>(dgate);
      arguments.dresidual = MutableData<T>(dresidual);
    }
    const auto& kernels = MapKernelsOf<T>();
    OpContext(context).Run(x.dim_size(0), [&](int64_t image) {
      kernels.activate_grad(OfImage(arguments, image), kind_);
    });
  }

 private:
  Kind kind_;
};

REGISTER_OP("ResnetActivate")
    .Input("x: T")
    .Input("gate: num_gates * float")
    .Input("residual: num_gates * T")
    .Output("y: num_copies * T")
    .Attr("T: {float, bfloat16}")
    .Attr("num_gates: int >= 0")
    .Attr("num_copies: int >= 1 = 1")
    .Attr("activation: {'relu', 'silu', 'mish'}")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) {
        context->set_output(i, context->input(0));
      }
      return absl::OkStatus();
    });

REGISTER_OP("ResnetActivateGrad")
    .Input("dy: num_dys * T")
    .Input("x: T")
    .Input("gate: num_gates * float")
    .Input("residual: num_gates * T")
    .Output("dx: T")
    .Output("dgate: num_gates * float")
    .Output("dresidual: num_gates * T")
    .Attr("T: {float, bfloat16}")
    .Attr("num_gates: int >= 0")
    .Attr("num_dys: int >= 1")
    .Attr("activation: {'relu', 'silu', 'mish'}")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      int num_dys, num_gates;
      TF_RETURN_IF_ERROR(context->GetAttr("num_dys", &num_dys));
      TF_RETURN_IF_ERROR(context->GetAttr("num_gates", &num_gates));
      context->set_output(0, context->input(num_dys));
      for (int i = 0; i < num_gates; ++i) {
        context->set_output(1 + i, context->input(num_dys + 1 + i));
        context->set_output(1 + num_gates + i, context->input(num_dys));
      }
      return absl::OkStatus();
    });

#define REGISTER_KERNELS(T)                                                           \
  REGISTER_KERNEL_BUILDER(                                                            \
      Name("ResnetActivate").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),   \
      ActivateOp<T>);                                                                 \
  REGISTER_KERNEL_BUILDER(                                                            \
      Name("ResnetActivateGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),\
      ActivateGradOp<T>)

REGISTER_KERNELS(float);
REGISTER_KERNELS(bfloat16);

}  // namespace
}  // namespace resnet
