// The threads and the memory that a kernel gets from its op.
//
// Doesn't include TensorFlow, so that kernels can be compiled for newer instruction sets
// without compiling TensorFlow's templates for them.

#ifndef RESNET_NATIVE_CONTEXT_H_
#define RESNET_NATIVE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace resnet {

// The threads and scratch memory of a kernel. Only the calling thread may use it.
class Context {
 public:
  virtual ~Context() = default;

  virtual int num_threads() const = 0;

  // Number of tasks to divide uniform work into: several per thread, so that a thread that
  // is delayed can take fewer.
  int64_t num_tasks() const { return num_threads() == 1 ? 1 : 4 * num_threads(); }

  // Calls task(i, worker) for each i below num_tasks, in any order and on any thread, and
  // waits for all. Concurrent calls have different workers, in [0, num_threads()). A task
  // must not throw.
  virtual void RunOnWorkers(int64_t num_tasks,
                            const std::function<void(int64_t, int64_t)>& task) const = 0;

  // The same without the worker's number.
  void Run(int64_t num_tasks, const std::function<void(int64_t)>& task) const {
    RunOnWorkers(num_tasks, [&task](int64_t i, int64_t) { task(i); });
  }

  // Returns uninitialized memory, aligned to 64 bytes, that lives as long as the context.
  // Throws std::bad_alloc if there is too little, which the op answers with an error.
  virtual void* Allocate(size_t bytes) = 0;
};

template <typename T>
T* AllocateFor(Context& context, int64_t count) {
  return static_cast<T*>(context.Allocate(count * sizeof(T)));
}

}  // namespace resnet

#endif  // RESNET_NATIVE_CONTEXT_H_
