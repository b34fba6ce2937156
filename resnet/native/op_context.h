// What the ops share: they give kernels threads and memory, and answer with an error where
// there is too little of it.

#ifndef RESNET_NATIVE_OP_CONTEXT_H_
#define RESNET_NATIVE_OP_CONTEXT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "resnet/native/bf16.h"
#include "resnet/native/context.h"
#include "resnet/native/kernels.h"
#include "resnet/native/task_times.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace resnet {

// An op that ends with an error, and not the process, where memory is short.
class Op : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    try {
      Run(context);
    } catch (const std::bad_alloc&) {
      context->CtxFailure(absl::ResourceExhaustedError(
          absl::StrCat(type_string(), " needs more memory than it gets")));
    }
  }

 protected:
  virtual void Run(tensorflow::OpKernelContext* context) = 0;
};

// A Context for one call of `Op::Run`.
class OpContext : public Context {
 public:
  explicit OpContext(tensorflow::OpKernelContext* context)
      : context_(context),
        workers_(context->device()->tensorflow_cpu_worker_threads()),
        times_(context->op_kernel().type_string()) {}

  int num_threads() const override { return workers_->num_threads; }

  void RunOnWorkers(
      int64_t num_tasks,
      const std::function<void(int64_t, int64_t)>& task) const override {
    if (!times_.is_recording()) return RunAll(num_tasks, task);
    double* const seconds = times_.BeginRegion(num_tasks);
    RunAll(num_tasks, [&](int64_t i, int64_t worker) {
      const double start = ThreadSeconds();
      task(i, worker);
      seconds[i] = ThreadSeconds() - start;
    });
    times_.EndRegion();
  }

  void* Allocate(size_t bytes) override {
    tensorflow::TensorShape shape;
    tensorflow::Tensor& memory = allocated_.emplace_back();
    absl::Status status = tensorflow::TensorShape::BuildTensorShape(
        {static_cast<int64_t>(bytes)}, &shape);
    status.Update(context_->allocate_temp(tensorflow::DT_INT8, shape, &memory));
    if (!status.ok()) throw std::bad_alloc();
    return memory.data();
  }

 private:
  void RunAll(int64_t num_tasks,
              const std::function<void(int64_t, int64_t)>& task) const {
    const int64_t num_workers = std::min<int64_t>(num_threads(), num_tasks);
    // Each worker takes the next task when it has finished one, because the speed of cores
    // varies and all wait for the last worker.
    std::atomic<int64_t> next{0};
    const auto work = [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        for (int64_t i = next++; i < num_tasks; i = next++) task(i, worker);
      }
    };
    // A single worker's tasks run faster on this thread than on one of the pool.
    if (num_workers <= 1) return work(0, num_workers);
    workers_->workers->ParallelFor(
        num_workers, tensorflow::thread::ThreadPool::SchedulingParams::Fixed(1), work);
  }

  tensorflow::OpKernelContext* const context_;
  const tensorflow::DeviceBase::CpuWorkerThreads* const workers_;
  std::vector<tensorflow::Tensor> allocated_;
  mutable TaskTimes times_;
};

// Calls task(i) for each i below `count`, in pieces that the threads share.
template <typename Task>
void ForEach(int64_t count, const Context& context, const Task& task) {
  const int64_t pieces = std::min(count, context.num_tasks());
  context.Run(pieces, [&](int64_t piece) {
    const int64_t end = (piece + 1) * count / pieces;
    for (int64_t i = piece * count / pieces; i < end; ++i) task(i);
  });
}

// Checks the length of an optional input, which is a list of none or one.
inline absl::Status CheckAtMostOne(tensorflow::OpKernelConstruction* context,
                                   const char* attribute) {
  int length;
  TF_RETURN_IF_ERROR(context->GetAttr(attribute, &length));
  if (length <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(attribute, " must be 0 or 1; got ", length));
}

// Checks a stride: with a larger one, sizes computed from it could overflow.
inline absl::Status CheckStride(int64_t stride) {
  if (1 <= stride && stride < int64_t{1} << 31) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("stride must be from 1 to below 2^31; got ", stride));
}

// The kernels' number type for a TensorFlow type.
template <typename T>
struct KernelType {
  using type = T;
};
template <>
struct KernelType<tensorflow::bfloat16> {
  using type = Bf16;
};

// Finds the kernels for a TensorFlow type.
template <typename T>
absl::Status FindKernels(const Kernels<typename KernelType<T>::type>** kernels) {
  const KernelSet set = CurrentKernels();
  if constexpr (std::is_same_v<T, float>) {
    *kernels = set.float32;
  } else {
    *kernels = set.bf16;
  }
  if (*kernels != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("expected a CPU whose instruction set this op has kernels for in ",
                   tensorflow::DataTypeString(tensorflow::DataTypeToEnum<T>::value),
                   "; found none, or RESNET_MAX_CPU_ISA excludes it"));
}

// Returns the kernels on feature maps for a TensorFlow type.
template <typename T>
const MapKernels<typename KernelType<T>::type>& MapKernelsOf() {
  const KernelSet set = CurrentKernels();
  if constexpr (std::is_same_v<T, float>) {
    return *set.float32_maps;
  } else {
    return *set.bf16_maps;
  }
}

// The elements of a float or bfloat16 tensor, as the kernels' number type.
template <typename T>
const typename KernelType<T>::type* Data(const tensorflow::Tensor& tensor) {
  return reinterpret_cast<const typename KernelType<T>::type*>(tensor.flat<T>().data());
}
template <typename T>
typename KernelType<T>::type* MutableData(tensorflow::Tensor* tensor) {
  return reinterpret_cast<typename KernelType<T>::type*>(tensor->flat<T>().data());
}

}  // namespace resnet

#endif  // RESNET_NATIVE_OP_CONTEXT_H_
