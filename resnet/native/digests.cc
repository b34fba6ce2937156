// A TensorFlow op for the digests of tensors: the CRC-32C of the bytes of each.
//
// The reference implementation is digests_of in distributed/digests.py. Where digests aren't
// wanted, the op costs nothing; a tf.cond takes milliseconds for hundreds of inputs.

#include <cstdint>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/hash/crc32c.h"

#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

class DigestsOp : public Op {
 public:
  using Op::Op;

  void Run(tensorflow::OpKernelContext* context) override {
    tensorflow::OpInputList tensors;
    OP_REQUIRES_OK(context, context->input_list("tensors", &tensors));
    OP_REQUIRES(context, context->input(0).dims() == 0,
                absl::InvalidArgumentError("wanted must be a scalar"));
    const bool is_wanted = context->input(0).scalar<bool>()();
    Tensor* digests = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, {is_wanted ? tensors.size() : 0}, &digests));
    if (!is_wanted) return;
    int64_t* const values = digests->flat<int64_t>().data();
    OpContext(context).Run(tensors.size(), [&](int64_t i) {
      const auto bytes = tensors[static_cast<int>(i)].tensor_data();
      values[i] = tensorflow::crc32c::Value(bytes.data(), bytes.size());
    });
  }
};

REGISTER_OP("ResnetDigests")
    .Input("wanted: bool")
    .Input("tensors: num_tensors * float")
    .Output("digests: int64")
    .Attr("num_tensors: int >= 1")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetDigests").Device(tensorflow::DEVICE_CPU), DigestsOp);

}  // namespace
}  // namespace resnet
