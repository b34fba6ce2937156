// A TensorFlow op that applies an SGD step with momentum, plain or Nesterov's, to all
// variables of a network.
//
// The reference implementation is Momentum.apply_with_stock_ops in optim/momentum.py.
// Weight decay is added in the same pass, so memory is read and written once.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/for_each_cpu.h"
#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

constexpr int64_t kPiece = 1 << 16;  // Elements per task.

// All ranks must update their weights to the same bits, also on CPUs of different kinds.
// So no multiplication is fused with an addition (FMA), which not all CPUs support.
#pragma GCC push_options
#pragma GCC optimize("-ffp-contract=off")

FOR_EACH_CPU void MoveNesterov(const float* gradient, int64_t size, float learning_rate,
                               float momentum, float lookahead, float weight_decay,
                               float* __restrict__ variable,
                               float* __restrict__ velocity) {
  for (int64_t i = 0; i < size; ++i) {
    const float step = gradient[i] + weight_decay * variable[i];
    velocity[i] = momentum * velocity[i] + step;
    variable[i] -= learning_rate * (step + lookahead * velocity[i]);
  }
}

FOR_EACH_CPU void MovePlain(const float* gradient, int64_t size, float learning_rate,
                            float momentum, float weight_decay,
                            float* __restrict__ variable, float* __restrict__ velocity) {
  for (int64_t i = 0; i < size; ++i) {
    velocity[i] = momentum * velocity[i] + (gradient[i] + weight_decay * variable[i]);
    variable[i] -= learning_rate * velocity[i];
  }
}

#pragma GCC pop_options

// The memory that one task reads and writes.
struct Piece {
  const float* gradient;
  float* variable;
  float* velocity;
  int64_t size;
  float weight_decay;
};

// Replaces the variable's tensor with a copy if a reader still holds a reference to it.
absl::Status Own(OpKernelContext* context, Var* variable) {
  Tensor* tensor = variable->tensor();
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(
      context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  std::copy_n(tensor->flat<float>().data(), tensor->NumElements(),
              copy.flat<float>().data());
  *tensor = copy;
  return absl::OkStatus();
}

class MomentumOp : public OpKernel {
 public:
  explicit MomentumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
    OP_REQUIRES_OK(context, context->GetAttr("weight_decays", &weight_decays_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList variables, velocities, gradients;
    OP_REQUIRES_OK(context, context->input_list("variables", &variables));
    OP_REQUIRES_OK(context, context->input_list("velocities", &velocities));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES(context,
                static_cast<int>(weight_decays_.size()) == variables.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "weight_decays must have one value for each of ", variables.size(),
                    " variables; got ", weight_decays_.size())));
    const int first_scalar = 3 * variables.size();
    for (int i = first_scalar; i < context->num_inputs(); ++i) {
      OP_REQUIRES(context, context->input(i).dims() == 0,
                  absl::InvalidArgumentError(absl::StrCat(
                      "learning_rate, momentum and lookahead must be scalars; got ",
                      context->input(i).shape().DebugString())));
    }
    const float learning_rate = context->input(first_scalar).scalar<float>()();
    const float momentum = context->input(first_scalar + 1).scalar<float>()();
    const float lookahead = context->input(first_scalar + 2).scalar<float>()();

    std::vector<tensorflow::core::RefCountPtr<Var>> held;
    std::vector<Piece> pieces;
    for (int i = 0; i < variables.size(); ++i) {
      float* data[2];
      for (int which = 0; which < 2; ++which) {
        const Tensor& handle = which == 0 ? variables[i] : velocities[i];
        OP_REQUIRES(context, handle.dims() == 0,
                    absl::InvalidArgumentError(absl::StrCat(
                        "the handle of a variable must be a scalar; got ",
                        handle.shape().DebugString())));
        held.emplace_back();
        OP_REQUIRES_OK(context, tensorflow::LookupResource(
                                    context, handle.scalar<tensorflow::ResourceHandle>()(),
                                    &held.back()));
        Var* variable = held.back().get();
        tensorflow::mutex_lock lock(*variable->mu());
        OP_REQUIRES(context, variable->tensor()->dtype() == tensorflow::DT_FLOAT,
                    absl::InvalidArgumentError(absl::StrCat(
                        "variable ", i, " must be float32; it is ",
                        tensorflow::DataTypeString(variable->tensor()->dtype()))));
        OP_REQUIRES(context, variable->tensor()->shape() == gradients[i].shape(),
                    absl::InvalidArgumentError(absl::StrCat(
                        "variable ", i, " has the shape ",
                        variable->tensor()->shape().DebugString(), ", its gradient ",
                        gradients[i].shape().DebugString())));
        OP_REQUIRES_OK(context, Own(context, variable));
        data[which] = variable->tensor()->flat<float>().data();
      }
      const float* gradient = gradients[i].flat<float>().data();
      const int64_t size = gradients[i].NumElements();
      for (int64_t begin = 0; begin < size; begin += kPiece) {
        pieces.push_back({gradient + begin, data[0] + begin, data[1] + begin,
                          std::min(kPiece, size - begin), weight_decays_[i]});
      }
    }
    OpContext(context).Run(pieces.size(), [&](int64_t task) {
      const Piece& piece = pieces[task];
      if (nesterov_) {
        MoveNesterov(piece.gradient, piece.size, learning_rate, momentum, lookahead,
                     piece.weight_decay, piece.variable, piece.velocity);
      } else {
        MovePlain(piece.gradient, piece.size, learning_rate, momentum,
                  piece.weight_decay, piece.variable, piece.velocity);
      }
    });
  }

 private:
  bool nesterov_;
  std::vector<float> weight_decays_;
};

REGISTER_OP("ResnetMomentum")
    .Input("variables: num_variables * resource")
    .Input("velocities: num_variables * resource")
    .Input("gradients: num_variables * float")
    .Input("learning_rate: float")
    .Input("momentum: float")
    .Input("lookahead: float")
    .Attr("num_variables: int >= 1")
    .Attr("nesterov: bool")
    .Attr("weight_decays: list(float)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("ResnetMomentum").Device(tensorflow::DEVICE_CPU), MomentumOp);

}  // namespace
}  // namespace resnet
