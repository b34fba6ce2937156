// Gives kernels the threads and the memory of the TensorFlow op that calls them.

#ifndef RESNET_NATIVE_OP_CONTEXT_H_
#define RESNET_NATIVE_OP_CONTEXT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "resnet/native/convolution.h"
#include "resnet/native/kernels.h"
#include "resnet/native/task_times.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/logging.h"

namespace resnet {

// A Context for one call of `OpKernel::Compute`.
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
    tensorflow::Tensor& memory = allocated_.emplace_back();
    const absl::Status status = context_->allocate_temp(
        tensorflow::DT_INT8, tensorflow::TensorShape({static_cast<int64_t>(bytes)}),
        &memory);
    // A kernel can't continue without memory and can't return an error.
    if (!status.ok()) LOG(FATAL) << "A kernel needs memory: " << status;
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
