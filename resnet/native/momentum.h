// The variables of SGD with momentum, shared by the ops that update them.

#ifndef RESNET_NATIVE_MOMENTUM_H_
#define RESNET_NATIVE_MOMENTUM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "resnet/native/momentum_kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace resnet {

using HeldVariable = tensorflow::core::RefCountPtr<tensorflow::Var>;

// Checks a variable, its velocity and its gradient, and appends their pieces. The caller
// holds the locks of both variables, whose tensors are replaced by copies where readers
// hold references to them. `number` is that of the variable, for errors.
absl::Status AddPieces(tensorflow::OpKernelContext* context, int number,
                       tensorflow::Var* variable, tensorflow::Var* velocity,
                       const tensorflow::Tensor& gradient, float weight_decay,
                       std::vector<MomentumPiece>* pieces);

// Looks up the variable of a handle, which must be a scalar.
absl::Status LookupVariable(tensorflow::OpKernelContext* context,
                            const tensorflow::Tensor& handle, HeldVariable* variable);

// Checks that no variable is there twice: an op would wait for its own lock of it, or
// update it from two threads.
absl::Status CheckDistinct(const std::vector<HeldVariable>& variables);

// Checks that `variable` is float32 and has the shape of `gradient`, and makes sure that
// no reader holds a reference to its tensor. The caller holds its lock.
absl::Status Prepare(tensorflow::OpKernelContext* context, int number,
                     tensorflow::Var* variable, const tensorflow::Tensor& gradient);

}  // namespace resnet

#endif  // RESNET_NATIVE_MOMENTUM_H_
