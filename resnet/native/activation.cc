// TensorFlow ops that apply ReLU, SiLU or Mish to feature maps in one pass, with the gate
// of squeeze-and-excitation and the residual in front of it:
//
//   y[n, p, c] = activation(gate[n, c] * x[n, p, c] + residual[n, p, c])
//
// for image n, position p and channel c; without a gate y = activation(x). The reference
// implementation is activations.activate_with_stock_ops in models/activations.py.

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/activation_functions.h"
#include "resnet/native/compression.h"
#include "resnet/native/for_each_cpu.h"
#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::bfloat16;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kStrip = 512;  // Values that are computed together, in the L1 cache.
constexpr int kMostCopies = 2;  // Of y: for the next block's convolutions and shortcut.

// The part of one image, or a piece of the values of all without a gate. Gradients only:
// dy, dx, dresidual and dgate.
template <typename T>
struct Arguments {
  int64_t rows, channels;
  const T* x;  // [rows, channels], like residual, y, dy, dx and dresidual.
  const T* residual;
  const float* gate;  // [channels]; nullptr for neither gate nor residual.
  T* y;
  const T* dy[kMostCopies];
  int num_dys;
  T* dx;
  T* dresidual;
  float* dgate;  // [channels].
};

// The values from `from` on as floats: these themselves, or widened in `buffer`.
INLINED const float* Widened(const float* from, int64_t, float*) { return from; }
INLINED const float* Widened(const Bf16* from, int64_t size, float* buffer) {
  for (int64_t i = 0; i < size; ++i) {
    buffer[i] = FloatOfBits(static_cast<uint32_t>(from[i].bits) << 16);
  }
  return buffer;
}

// Where to compute the floats that `Narrow` then stores in `to`.
INLINED float* Unrounded(float* to, float*) { return to; }
INLINED float* Unrounded(Bf16*, float* buffer) { return buffer; }
INLINED void Narrow(const float*, int64_t, float*) {}
INLINED void Narrow(const float* from, int64_t size, Bf16* to) {
  for (int64_t i = 0; i < size; ++i) to[i].bits = RoundToBfloat16(from[i]);
}

template <Kind kind, typename T>
INLINED void ForwardStrip(const Arguments<T>& a, int64_t first, int64_t channel,
                          int64_t size) {
  float x_buffer[kStrip], residual_buffer[kStrip], y_buffer[kStrip];
  const float* x = Widened(a.x + first, size, x_buffer);
  float* y = Unrounded(a.y + first, y_buffer);
  if (a.gate == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) y[i] = Activate<kind>(x[i]);
  } else {
    const float* gate = a.gate + channel;
    const float* residual = Widened(a.residual + first, size, residual_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) {
      y[i] = Activate<kind>(gate[i] * x[i] + residual[i]);
    }
  }
  Narrow(y, size, a.y + first);
}

// Each element is read before it is written, so dx may share its memory with a dy.
template <Kind kind, typename T>
INLINED void BackwardStrip(const Arguments<T>& a, int64_t first, int64_t channel,
                           int64_t size) {
  float x_buffer[kStrip], residual_buffer[kStrip], dx_buffer[kStrip], g_buffer[kStrip];
  float dy_buffer[kStrip];
  const float* x = Widened(a.x + first, size, x_buffer);
  const float* dy = Widened(a.dy[0] + first, size, dy_buffer);
  if (a.num_dys == 2) {
    const float* other = Widened(a.dy[1] + first, size, g_buffer);
    for (int64_t i = 0; i < size; ++i) dx_buffer[i] = dy[i] + other[i];
    dy = dx_buffer;
  }
  float* dx = Unrounded(a.dx + first, dx_buffer);
  if (a.gate == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) dx[i] = dy[i] * Derivative<kind>(x[i]);
  } else {
    const float* gate = a.gate + channel;
    float* dgate = a.dgate + channel;
    const float* residual = Widened(a.residual + first, size, residual_buffer);
    float* dresidual = Unrounded(a.dresidual + first, g_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) {
      const float g = dy[i] * Derivative<kind>(gate[i] * x[i] + residual[i]);
      dgate[i] += g * x[i];
      dresidual[i] = g;
      dx[i] = g * gate[i];
    }
    Narrow(dresidual, size, a.dresidual + first);
  }
  Narrow(dx, size, a.dx + first);
}

// Calls strip(first, channel, size) for strips of at most kStrip values. With a gate these
// are of one position.
template <typename T, typename Strip>
INLINED void ForEachStrip(const Arguments<T>& a, const Strip& strip) {
  const bool has_gate = a.gate != nullptr;
  const int64_t rows = has_gate ? a.rows : 1;
  const int64_t width = has_gate ? a.channels : a.rows * a.channels;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; i += kStrip) {
      strip(row * width + i, i, std::min(kStrip, width - i));
    }
  }
}

template <Kind kind, typename T>
INLINED void ForwardOf(const Arguments<T>& a) {
  ForEachStrip(a, [&](int64_t first, int64_t channel, int64_t size) __attribute__((
                      always_inline)) { ForwardStrip<kind>(a, first, channel, size); });
}

template <Kind kind, typename T>
INLINED void BackwardOf(const Arguments<T>& a) {
  if (a.gate != nullptr) std::fill_n(a.dgate, a.channels, 0.0f);
  ForEachStrip(a, [&](int64_t first, int64_t channel, int64_t size) __attribute__((
                      always_inline)) { BackwardStrip<kind>(a, first, channel, size); });
}

#define DEFINE_KERNELS(T)                                                   \
  FOR_EACH_CPU void Forward(const Arguments<T>& arguments, Kind kind) {     \
    if (kind == Kind::kRelu) return ForwardOf<Kind::kRelu>(arguments);      \
    if (kind == Kind::kSilu) return ForwardOf<Kind::kSilu>(arguments);      \
    ForwardOf<Kind::kMish>(arguments);                                      \
  }                                                                         \
  FOR_EACH_CPU void Backward(const Arguments<T>& arguments, Kind kind) {    \
    if (kind == Kind::kRelu) return BackwardOf<Kind::kRelu>(arguments);     \
    if (kind == Kind::kSilu) return BackwardOf<Kind::kSilu>(arguments);     \
    BackwardOf<Kind::kMish>(arguments);                                     \
  }
DEFINE_KERNELS(float)
DEFINE_KERNELS(Bf16)

absl::Status ReadKind(OpKernelConstruction* context, Kind* kind) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("activation", &name));
  *kind = name == "relu" ? Kind::kRelu : name == "silu" ? Kind::kSilu : Kind::kMish;
  return absl::OkStatus();
}

// The gate and the residual: both or neither, of the shapes that x needs.
template <typename T>
absl::Status ReadGate(OpKernelContext* context, const Tensor& x,
                      Arguments<typename KernelType<T>::type>* arguments) {
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
  const TensorShape of_gate({x.dim_size(0), x.dim_size(3)});
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
Arguments<T> OfImage(Arguments<T> arguments, int64_t image) {
  const int64_t first = image * arguments.rows * arguments.channels;
  arguments.x += first;
  if (arguments.y != nullptr) arguments.y += first;
  for (int i = 0; i < arguments.num_dys; ++i) arguments.dy[i] += first;
  if (arguments.dx != nullptr) arguments.dx += first;
  if (arguments.gate == nullptr) return arguments;
  arguments.residual += first;
  arguments.gate += image * arguments.channels;
  if (arguments.dresidual != nullptr) {
    arguments.dresidual += first;
    arguments.dgate += image * arguments.channels;
  }
  return arguments;
}

template <typename T>
class ActivateOp : public OpKernel {
 public:
  explicit ActivateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadKind(context, &kind_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Arguments<typename KernelType<T>::type> arguments{};
    OP_REQUIRES_OK(context, ReadGate<T>(context, x, &arguments));
    OpOutputList ys;
    OP_REQUIRES_OK(context, context->output_list("y", &ys));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, ys.allocate(0, x.shape(), &y));
    for (int copy = 1; copy < ys.size(); ++copy) ys.set(copy, *y);
    arguments.y = MutableData<T>(y);
    OpContext(context).Run(x.dim_size(0), [&](int64_t image) {
      Forward(OfImage(arguments, image), kind_);
    });
  }

 private:
  Kind kind_;
};

template <typename T>
class ActivateGradOp : public OpKernel {
 public:
  explicit ActivateGradOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadKind(context, &kind_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList dys;
    OP_REQUIRES_OK(context, context->input_list("dy", &dys));
    const Tensor& x = context->input(dys.size());
    Arguments<typename KernelType<T>::type> arguments{};
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
      const TensorShape of_gate({x.dim_size(0), x.dim_size(3)});
      OP_REQUIRES_OK(context, dgates.allocate(0, of_gate, &dgate));
      OP_REQUIRES_OK(context, dresiduals.allocate(0, x.shape(), &dresidual));
      arguments.dgate = MutableData<float>(dgate);
      arguments.dresidual = MutableData<T>(dresidual);
    }
    OpContext(context).Run(x.dim_size(0), [&](int64_t image) {
      Backward(OfImage(arguments, image), kind_);
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
