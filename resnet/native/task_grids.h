// The division of matrix products into tasks for threads, and the tasks' memory.

#ifndef RESNET_NATIVE_TASK_GRIDS_H_
#define RESNET_NATIVE_TASK_GRIDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "resnet/native/context.h"
#include "resnet/native/ranges.h"
#include "resnet/native/rounding.h"

namespace resnet {

constexpr int64_t kLine = 64;        // Bytes per cache line.
constexpr int64_t kColumnStep = 64;  // The first column of each task is a multiple of it.

// Costs in multiplications, for dividing work among threads.
constexpr double kReadCost = 8;  // Of reading an element into a core's caches.
constexpr double kSumCost = 24;  // Of writing and adding an element of a partial sum.

// Several pieces of memory of the same size, one per task or one per worker.
class Pieces {
 public:
  Pieces(Context& context, int64_t count, size_t bytes)
      : bytes_(RoundUp(bytes, kLine)),
        memory_(AllocateFor<char>(context, count * bytes_)) {}

  char* of(int64_t piece) const { return memory_ + piece * bytes_; }

 private:
  int64_t bytes_;
  char* memory_;
};

// The number of parts that the rows and the columns of a product are divided into.
struct Grid {
  int64_t rows, columns;
};

// Returns the fastest grid for a product with m rows and n columns.
inline Grid MakeGrid(int64_t m, int64_t n, int64_t threads) {
  Grid best = {1, 1};
  double least = std::numeric_limits<double>::infinity();
  const int64_t most_columns = std::min(threads, CeilDivide(n, kColumnStep));
  for (int64_t columns = 1; columns <= most_columns; ++columns) {
    const int64_t rows = std::min(m, CeilDivide(threads, columns));
    const double part_rows = CeilDivide(m, rows);
    const double part_columns = LargestPart(n, columns, kColumnStep);
    // The cost per element of the summed dimension.
    const double cost = CeilDivide(rows * columns, threads) *
                        (part_rows * part_columns + kReadCost * (part_rows + part_columns));
    if (cost < least) {
      least = cost;
      best = {rows, columns};
    }
  }
  return best;
}

// The division of a kernel gradient among threads. Each part of the positions needs a
// partial sum of its own; parts of the kernel's rows or columns read the images again.
struct GradientGrid {
  int64_t places, parts, columns;
};

// Returns the fastest grid for m positions and a kernel [k, n] whose k rows can be divided
// into at most `most_parts` parts.
inline GradientGrid MakeGradientGrid(int64_t m, int64_t k, int64_t n, int64_t most_parts,
                                     int64_t threads) {
  GradientGrid best = {1, 1, 1};
  double least = std::numeric_limits<double>::infinity();
  const int64_t most_columns = std::min(threads, CeilDivide(n, kColumnStep));
  for (int64_t parts = 1; parts <= std::min(threads, most_parts); ++parts) {
    const double part_k = static_cast<double>(k) / most_parts * CeilDivide(most_parts, parts);
    for (int64_t columns = 1; columns <= most_columns; ++columns) {
      const double part_n = LargestPart(n, columns, kColumnStep);
      const int64_t places = std::min(m, CeilDivide(threads, parts * columns));
      const double sums = places > 1 ? kSumCost * places * k * n / threads : 0;
      const double cost =
          sums + CeilDivide(places * parts * columns, threads) * CeilDivide(m, places) *
                     (part_k * part_n + kReadCost * (part_k + part_n));
      if (cost < least) {
        least = cost;
        best = {places, parts, columns};
      }
    }
  }
  return best;
}

}  // namespace resnet

#endif  // RESNET_NATIVE_TASK_GRIDS_H_
