// Records the processor time of the tasks that compiled ops divide their work into.
//
// It shows, on a machine with few cores, how evenly the work divides among many threads.

#ifndef RESNET_NATIVE_TASK_TIMES_H_
#define RESNET_NATIVE_TASK_TIMES_H_

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
extern "C" {

// Starts to record, from the ops' next calls on, and forgets earlier records.
void resnet_start_recording_tasks();

// Ends the recording and writes it as lines of "call op region task seconds". A region is
// one division of work into tasks, and the work outside all regions is task 0 of region
// -1. Returns whether the file was written.
bool resnet_stop_recording_tasks(const char* path);

}  // extern "C"
#pragma GCC visibility pop

namespace resnet {

// Returns the processor time of the calling thread in seconds.
double ThreadSeconds();

// The tasks of one call of an op. It does nothing while nothing is recorded.
class TaskTimes {
 public:
  explicit TaskTimes(const std::string& op);
  ~TaskTimes();

  TaskTimes(const TaskTimes&) = delete;
  TaskTimes& operator=(const TaskTimes&) = delete;

  bool is_recording() const { return is_recording_; }

  // Between the two, work is divided into tasks. Their seconds are written to the returned
  // array, which lives until the next call.
  double* BeginRegion(int64_t num_tasks);
  void EndRegion();

 private:
  const bool is_recording_;
  std::string op_;
  double start_ = 0;         // Of the op, on the thread that calls it.
  double region_start_ = 0;  // The same for the region.
  double in_regions_ = 0;    // Seconds of that thread within regions.
  std::vector<std::vector<double>> regions_;
};

}  // namespace resnet

#endif  // RESNET_NATIVE_TASK_TIMES_H_
