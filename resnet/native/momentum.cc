// A TensorFlow op that applies an SGD step with momentum, plain or Nesterov's, to all
// variables of a network.
//
// The reference implementation is momentum.update in optim/momentum.py, by stock ops.
// Weight decay is added in the same pass, so memory is read and written once.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/kernels.h"
#include "resnet/native/momentum.h"
#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

constexpr int64_t kPiece = 1 << 16;  // Elements per task.

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

}  // namespace

absl::Status LookupVariable(OpKernelContext* context, const Tensor& handle,
                            HeldVariable* variable) {
  if (handle.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the handle of a variable must be a scalar; got ",
                     handle.shape().DebugString()));
  }
  return tensorflow::LookupResource(
      context, handle.scalar<tensorflow::ResourceHandle>()(), variable);
}

absl::Status CheckDistinct(const std::vector<HeldVariable>& variables) {
  std::vector<const Var*> sorted;
  for (const HeldVariable& variable : variables) sorted.push_back(variable.get());
  std::sort(sorted.begin(), sorted.end(), std::less<>());
  if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "the variables of an update, their velocities included, must be distinct; got one"
      " twice");
}

absl::Status Prepare(OpKernelContext* context, int number, Var* variable,
                     const Tensor& gradient) {
  if (variable->tensor()->dtype() != tensorflow::DT_FLOAT) {
    return absl::InvalidArgumentError(
        absl::StrCat("variable ", number, " must be float32; it is ",
                     tensorflow::DataTypeString(variable->tensor()->dtype())));
  }
  if (variable->tensor()->shape() != gradient.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "variable ", number, " has the shape ",
        variable->tensor()->shape().DebugString(), ", its gradient ",
        gradient.shape().DebugString()));
  }
  return Own(context, variable);
}

absl::Status AddPieces(OpKernelContext* context, int number, Var* variable,
                       Var* velocity, const Tensor& gradient, float weight_decay,
                       std::vector<MomentumPiece>* pieces) {
  TF_RETURN_IF_ERROR(Prepare(context, number, variable, gradient));
  TF_RETURN_IF_ERROR(Prepare(context, number, velocity, gradient));
  const float* from = gradient.flat<float>().data();
  float* values = variable->tensor()->flat<float>().data();
  float* velocities = velocity->tensor()->flat<float>().data();
  const int64_t size = gradient.NumElements();
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    pieces->push_back({from + begin, values + begin, velocities + begin,
                       std::min(kPiece, size - begin), weight_decay});
  }
  return absl::OkStatus();
}

namespace {

class MomentumOp : public Op {
 public:
  explicit MomentumOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
    OP_REQUIRES_OK(context, context->GetAttr("weight_decays", &weight_decays_));
  }

  void Run(OpKernelContext* context) override {
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
                      "learning_rate, momentum and nesterov_momentum must be scalars; got ",
                      context->input(i).shape().DebugString())));
    }
    const MomentumStep step = {context->input(first_scalar).scalar<float>()(),
                               context->input(first_scalar + 1).scalar<float>()(),
                               context->input(first_scalar + 2).scalar<float>()(),
                               nesterov_};
    std::vector<HeldVariable> held(2 * variables.size());  // Each before its velocity.
    for (int i = 0; i < variables.size(); ++i) {
      OP_REQUIRES_OK(context, LookupVariable(context, variables[i], &held[2 * i]));
      OP_REQUIRES_OK(context, LookupVariable(context, velocities[i], &held[2 * i + 1]));
    }
    OP_REQUIRES_OK(context, CheckDistinct(held));
    std::vector<MomentumPiece> pieces;
    for (int i = 0; i < variables.size(); ++i) {
      Var *const variable = held[2 * i].get(), *const velocity = held[2 * i + 1].get();
      tensorflow::mutex_lock lock(*variable->mu());
      tensorflow::mutex_lock lock_of_velocity(*velocity->mu());
      OP_REQUIRES_OK(context, AddPieces(context, i, variable, velocity, gradients[i],
                                        weight_decays_[i], &pieces));
    }
    MoveFunction* const move = CurrentKernels().move;
    OpContext(context).Run(pieces.size(),
                           [&](int64_t task) { move(pieces[task], step); });
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
    .Input("nesterov_momentum: float")
    .Attr("num_variables: int >= 1")
    .Attr("nesterov: bool")
    .Attr("weight_decays: list(float)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("ResnetMomentum").Device(tensorflow::DEVICE_CPU), MomentumOp);

}  // namespace
}  // namespace resnet
