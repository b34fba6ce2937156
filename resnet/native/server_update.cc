// A TensorFlow op that applies the gradients of one closure of asynchronous training to
// the variables of a parameter server, once for each closure.
//
// The reference implementation is servers.apply_update_with_stock_ops in
// training/parameter_servers/servers.py.
// The runtime executes a closure again if its worker dies before it has answered, also
// if its update was applied. So each server keeps the numbers of the last closures that
// it has applied, and ignores an update that it has seen. Updates of a server follow each
// other, and readers wait for them: none is lost, and nobody reads half of one.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/averages.h"
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

absl::Status LookupAll(OpKernelContext* context, const OpInputList& handles,
                       std::vector<HeldVariable>* variables) {
  for (const Tensor& handle : handles) {
    TF_RETURN_IF_ERROR(LookupVariable(context, handle, &variables->emplace_back()));
  }
  return absl::OkStatus();
}

class ServerUpdateOp : public Op {
 public:
  explicit ServerUpdateOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
    OP_REQUIRES_OK(context, context->GetAttr("weight_decays", &weight_decays_));
    OP_REQUIRES_OK(context, context->GetAttr("average_step", &average_step_));
    OP_REQUIRES_OK(context, context->GetAttr("inverse_staleness", &inverse_staleness_));
  }

  void Run(OpKernelContext* context) override {
    OpInputList variable_handles, velocity_handles, gradients, average_handles, statistics;
    OP_REQUIRES_OK(context, context->input_list("variables", &variable_handles));
    OP_REQUIRES_OK(context, context->input_list("velocities", &velocity_handles));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES_OK(context, context->input_list("averages", &average_handles));
    OP_REQUIRES_OK(context, context->input_list("statistics", &statistics));
    OP_REQUIRES(context,
                static_cast<int>(weight_decays_.size()) == variable_handles.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "weight_decays must have one value for each of ",
                    variable_handles.size(), " variables; got ", weight_decays_.size())));
    const int first_scalar = 3 * variable_handles.size() + 2 * average_handles.size();
    for (int i = first_scalar; i < context->num_inputs(); ++i) {
      OP_REQUIRES(context, context->input(i).dims() == 0,
                  absl::InvalidArgumentError(absl::StrCat(
                      "the inputs after the statistics must be scalars; got ",
                      context->input(i).shape().DebugString())));
    }
    // The variables, their velocities, the averages and the log of what was applied.
    std::vector<HeldVariable> held;
    OP_REQUIRES_OK(context, LookupAll(context, variable_handles, &held));
    OP_REQUIRES_OK(context, LookupAll(context, velocity_handles, &held));
    OP_REQUIRES_OK(context, LookupAll(context, average_handles, &held));
    OP_REQUIRES_OK(context, LookupVariable(context, context->input(first_scalar),
                                           &held.emplace_back()));
    OP_REQUIRES_OK(context, CheckDistinct(held));
    const HeldVariable* const velocities = held.data() + gradients.size();
    const HeldVariable* const averages = velocities + gradients.size();
    Var* const applied = held.back().get();
    const int64_t number = context->input(first_scalar + 1).scalar<int64_t>()();
    const int64_t read_at = context->input(first_scalar + 2).scalar<int64_t>()();
    MomentumStep step = {context->input(first_scalar + 3).scalar<float>()(),
                         context->input(first_scalar + 4).scalar<float>()(),
                         context->input(first_scalar + 5).scalar<float>()(), nesterov_};
    Tensor* staleness = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &staleness));

    // Nothing else locks it for longer than a read: updates wait for each other here.
    tensorflow::mutex_lock lock(*applied->mu());
    const Tensor* log = applied->tensor();
    OP_REQUIRES(context,
                log->dtype() == tensorflow::DT_INT64 && log->dims() == 1 &&
                    log->NumElements() >= 2 && number >= 0,
                absl::InvalidArgumentError(
                    "applied must be a vector of at least 2 int64, and number at least 0"));
    // The first element counts the updates. The others are the numbers of the last
    // closures, plus 1, each in the slot of its number.
    const int64_t count = log->flat<int64_t>()(0);
    const int64_t slot = 1 + number % (log->NumElements() - 1);
    if (log->flat<int64_t>()(slot) == number + 1) {
      staleness->scalar<int64_t>()() = -1;
      return;
    }
    staleness->scalar<int64_t>()() = count - read_at;
    if (inverse_staleness_) {
      step.learning_rate /= static_cast<float>(std::max<int64_t>(count - read_at, 1));
    }
    std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks;
    for (size_t i = 0; i + 1 < held.size(); ++i) {
      locks.push_back(std::make_unique<tensorflow::mutex_lock>(*held[i]->mu()));
    }
    std::vector<MomentumPiece> pieces;
    for (int i = 0; i < gradients.size(); ++i) {
      OP_REQUIRES_OK(context,
                     AddPieces(context, i, held[i].get(), velocities[i].get(),
                               gradients[i], weight_decays_[i], &pieces));
    }
    for (int i = 0; i < statistics.size(); ++i) {
      OP_REQUIRES_OK(context, Prepare(context, i, averages[i].get(), statistics[i]));
    }
    if (!log->RefCountIsOne()) {  // A reader holds a reference to it.
      Tensor copy;
      OP_REQUIRES_OK(context, context->allocate_temp(log->dtype(), log->shape(), &copy));
      std::copy_n(log->flat<int64_t>().data(), log->NumElements(),
                  copy.flat<int64_t>().data());
      *applied->tensor() = copy;
    }
    // From here on nothing can fail.
    for (int i = 0; i < statistics.size(); ++i) {
      MoveAverage(averages[i]->tensor(), statistics[i], average_step_);
    }
    MoveFunction* const move = CurrentKernels().move;
    OpContext(context).Run(pieces.size(),
                           [&](int64_t task) { move(pieces[task], step); });
    applied->tensor()->flat<int64_t>()(0) = count + 1;
    applied->tensor()->flat<int64_t>()(slot) = number + 1;
  }

 private:
  bool nesterov_;
  bool inverse_staleness_;
  float average_step_;
  std::vector<float> weight_decays_;
};

REGISTER_OP("ResnetServerUpdate")
    .Input("variables: num_variables * resource")
    .Input("velocities: num_variables * resource")
    .Input("gradients: num_variables * float")
    .Input("averages: num_averages * resource")
    .Input("statistics: num_averages * float")
    .Input("applied: resource")
    .Input("number: int64")
    .Input("read_at: int64")
    .Input("learning_rate: float")
    .Input("momentum: float")
    .Input("nesterov_momentum: float")
    .Output("staleness: int64")
    .Attr("num_variables: int >= 0")
    .Attr("num_averages: int >= 0")
    .Attr("nesterov: bool")
    .Attr("inverse_staleness: bool")
    .Attr("average_step: float")
    .Attr("weight_decays: list(float)")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetServerUpdate").Device(tensorflow::DEVICE_CPU),
                        ServerUpdateOp);

}  // namespace
}  // namespace resnet
