// TensorFlow ops for GELU, x * P(X <= x) for a normally distributed X, in one pass.
//
// They compute in float32. Their inputs and outputs may have different types. The reference
// implementation is activations.gelu in models/layers/activations.py, by stock ops.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/op_context.h"
#include "resnet/native/rounding.h"

namespace resnet {
namespace {

using tensorflow::bfloat16;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int64_t kPieceOfMap = 1 << 14;  // Values per task.

// Calls task(first, size) for pieces of all values, which the threads share.
template <typename Task>
void ForEachPiece(int64_t size, OpKernelContext* context, const Task& task) {
  ForEach(CeilDivide(size, kPieceOfMap), OpContext(context), [&](int64_t i) {
    task(i * kPieceOfMap, std::min(kPieceOfMap, size - i * kPieceOfMap));
  });
}

template <typename T, typename U>
const auto& GeluKernelsOf() {
  using Pair = GeluKernels<typename KernelType<T>::type, typename KernelType<U>::type>;
  return static_cast<const Pair&>(MapKernelsOf<T>());
}

template <typename T, typename U>
class GeluOp : public Op {
 public:
  using Op::Op;

  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
    const auto kernel = GeluKernelsOf<T, U>().gelu;
    ForEachPiece(x.NumElements(), context, [&](int64_t first, int64_t size) {
      kernel(Data<T>(x) + first, size, MutableData<U>(y) + first);
    });
  }
};

template <typename T, typename U>
class GeluGradOp : public Op {
 public:
  using Op::Op;

  void Run(OpKernelContext* context) override {
    const Tensor& dy = context->input(0);
    const Tensor& x = context->input(1);
    OP_REQUIRES(context, dy.shape() == x.shape(),
                absl::InvalidArgumentError(
                    absl::StrCat("dy must be shaped like x, ", x.shape().DebugString(),
                                 "; got ", dy.shape().DebugString())));
    // dx may take the memory of a gradient of its type that no other op needs.
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 0, x.shape(), &dx));
    const auto kernel = GeluKernelsOf<T, U>().gelu_grad;
    ForEachPiece(x.NumElements(), context, [&](int64_t first, int64_t size) {
      kernel(Data<U>(dy) + first, Data<T>(x) + first, size,
             MutableData<T>(dx) + first);
    });
  }
};

REGISTER_OP("ResnetGelu")
    .Input("x: T")
    .Output("y: U")
    .Attr("T: {float, bfloat16}")
    .Attr("U: {float, bfloat16}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("ResnetGeluGrad")
    .Input("dy: U")
    .Input("x: T")
    .Output("dx: T")
    .Attr("T: {float, bfloat16}")
    .Attr("U: {float, bfloat16}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

#define REGISTER_KERNELS(T, U)                                    \
  REGISTER_KERNEL_BUILDER(Name("ResnetGelu")                      \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("T")             \
                              .TypeConstraint<U>("U"),            \
                          GeluOp<T, U>);                          \
  REGISTER_KERNEL_BUILDER(Name("ResnetGeluGrad")                  \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("T")             \
                              .TypeConstraint<U>("U"),            \
                          GeluGradOp<T, U>)

REGISTER_KERNELS(float, float);
REGISTER_KERNELS(float, bfloat16);
REGISTER_KERNELS(bfloat16, float);
REGISTER_KERNELS(bfloat16, bfloat16);

}  // namespace
}  // namespace resnet
