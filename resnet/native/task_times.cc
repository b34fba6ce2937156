#include "resnet/native/task_times.h"

#include <time.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <utility>

namespace resnet {
namespace {

struct Call {
  std::string op;
  double serial_seconds;
  std::vector<std::vector<double>> regions;
};

std::atomic<bool> recording{false};
std::mutex mutex;
std::vector<Call>& Calls() {  // Guarded by the mutex.
  static std::vector<Call> calls;
  return calls;
}

}  // namespace

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TaskTimes::TaskTimes(const std::string& op) : is_recording_(recording) {
  if (!is_recording_) return;
  op_ = op;
  start_ = ThreadSeconds();
}

TaskTimes::~TaskTimes() {
  if (!is_recording_) return;
  const double serial = ThreadSeconds() - start_ - in_regions_;
  const std::lock_guard<std::mutex> lock(mutex);
  Calls().push_back({std::move(op_), serial, std::move(regions_)});
}

double* TaskTimes::BeginRegion(int64_t num_tasks) {
  regions_.emplace_back(num_tasks);
  region_start_ = ThreadSeconds();
  return regions_.back().data();
}

void TaskTimes::EndRegion() { in_regions_ += ThreadSeconds() - region_start_; }

}  // namespace resnet

void resnet_start_recording_tasks() {
  const std::lock_guard<std::mutex> lock(resnet::mutex);
  resnet::Calls().clear();
  resnet::recording = true;
}

bool resnet_stop_recording_tasks(const char* path) {
  resnet::recording = false;
  const std::lock_guard<std::mutex> lock(resnet::mutex);
  std::ofstream file(path);
  int64_t index = 0;
  for (const resnet::Call& call : resnet::Calls()) {
    file << index << ' ' << call.op << " -1 0 " << call.serial_seconds << '\n';
    for (size_t region = 0; region < call.regions.size(); ++region) {
      const std::vector<double>& tasks = call.regions[region];
      for (size_t task = 0; task < tasks.size(); ++task) {
        file << index << ' ' << call.op << ' ' << region << ' ' << task << ' '
             << tasks[task] << '\n';
      }
    }
    ++index;
  }
  resnet::Calls().clear();
  file.close();
  return file.good();
}
