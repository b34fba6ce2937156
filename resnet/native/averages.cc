// A TensorFlow op that moves the moving averages of a network towards the statistics of a
// batch, all at once: hundreds of small ops take long to trace, and some time in each step.
//
// The reference implementation is in models/layers/normalization.py, by stock ops.

#include "resnet/native/averages.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/momentum.h"
#include "resnet/native/op_context.h"
#include "resnet/native/without_fma.h"

namespace resnet {

RESNET_BEGIN_WITHOUT_FMA

void MoveAverage(tensorflow::Tensor* average, const tensorflow::Tensor& statistic,
                 float step) {
  float* const values = average->flat<float>().data();
  const float* const of_batch = statistic.flat<float>().data();
  const int64_t size = statistic.NumElements();
  for (int64_t i = 0; i < size; ++i) values[i] -= (values[i] - of_batch[i]) * step;
}

RESNET_END_WITHOUT_FMA

namespace {

class MoveAveragesOp : public Op {
 public:
  explicit MoveAveragesOp(tensorflow::OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("steps", &steps_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    tensorflow::OpInputList handles, statistics;
    OP_REQUIRES_OK(context, context->input_list("averages", &handles));
    OP_REQUIRES_OK(context, context->input_list("statistics", &statistics));
    OP_REQUIRES(context, static_cast<int>(steps_.size()) == handles.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "steps must have one value for each of ", handles.size(),
                    " averages; got ", steps_.size())));
    std::vector<HeldVariable> held(handles.size());
    for (int i = 0; i < handles.size(); ++i) {
      OP_REQUIRES_OK(context, LookupVariable(context, handles[i], &held[i]));
    }
    OP_REQUIRES_OK(context, CheckDistinct(held));
    for (int i = 0; i < handles.size(); ++i) {
      tensorflow::mutex_lock lock(*held[i]->mu());
      OP_REQUIRES_OK(context, Prepare(context, i, held[i].get(), statistics[i]));
      MoveAverage(held[i]->tensor(), statistics[i], steps_[i]);
    }
  }

 private:
  std::vector<float> steps_;
};

REGISTER_OP("ResnetMoveAverages")
    .Input("averages: num_averages * resource")
    .Input("statistics: num_averages * float")
    .Attr("num_averages: int >= 1")
    .Attr("steps: list(float)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("ResnetMoveAverages").Device(tensorflow::DEVICE_CPU),
                        MoveAveragesOp);

}  // namespace
}  // namespace resnet
