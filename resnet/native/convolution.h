// Declarations shared by all kernels: shapes, dtypes, threads and scratch memory.
//
// Doesn't include TensorFlow, so that kernels can be compiled for newer instruction sets
// without compiling TensorFlow's templates for them.

#ifndef RESNET_NATIVE_CONVOLUTION_H_
#define RESNET_NATIVE_CONVOLUTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace resnet {

// A convolution with a square kernel; images are [batch, height, width, channels].
//
// y[n, h, w, k] = sum over i, j, c of
//     x[n, h * stride + i - pad, w * stride + j - pad, c] * kernel[i, j, c, k]
// where x is 0 outside the image and pad = (kernel_size - 1) / 2, rounded down.
struct ConvShape {
  int64_t batch, in_height, in_width, in_channels;
  int64_t out_height, out_width, out_channels;
  int64_t kernel_size, stride;

  int64_t pad() const { return (kernel_size - 1) / 2; }
};

// A bfloat16: the upper half of a float.
struct Bf16 {
  uint16_t bits;
};

// The threads and scratch memory of a kernel. Only the calling thread may use it.
class Context {
 public:
  virtual ~Context() = default;

  virtual int num_threads() const = 0;

  // Number of tasks to divide uniform work into: several per thread, so that a thread that
  // is delayed can take fewer.
  int64_t num_tasks() const { return num_threads() == 1 ? 1 : 4 * num_threads(); }

  // Calls task(i, worker) for each i below num_tasks, in any order and on any thread, and
  // waits for all. Concurrent calls have different workers, in [0, num_threads()).
  virtual void RunOnWorkers(int64_t num_tasks,
                            const std::function<void(int64_t, int64_t)>& task) const = 0;

  // The same without the worker's number.
  void Run(int64_t num_tasks, const std::function<void(int64_t)>& task) const {
    RunOnWorkers(num_tasks, [&task](int64_t i, int64_t) { task(i); });
  }

  // Returns uninitialized memory, aligned to 64 bytes, that lives as long as the context.
  virtual void* Allocate(size_t bytes) = 0;
};

// Applied to each output of a forward convolution before it is rounded and stored:
// y = relu(y + bias[k] + residual[n, h, w, k]); each part is optional.
template <typename T>
struct Epilogue {
  const float* bias = nullptr;
  const T* residual = nullptr;
  bool relu = false;
};

}  // namespace resnet

#endif  // RESNET_NATIVE_CONVOLUTION_H_
