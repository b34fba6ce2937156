// Ranges of rows, columns or tiles, which tasks divide among them.

#ifndef RESNET_NATIVE_RANGES_H_
#define RESNET_NATIVE_RANGES_H_

#include <algorithm>
#include <cstdint>

#include "resnet/native/rounding.h"

namespace resnet {

struct Range {
  int64_t begin, end;

  int64_t size() const { return end - begin; }
};

// Returns the i-th of `parts` parts of [0, total), which begin at multiples of `step` and
// are as even as possible.
inline Range Part(int64_t total, int64_t parts, int64_t i, int64_t step = 1) {
  const int64_t steps = CeilDivide(total, step);
  return {std::min(total, steps * i / parts * step),
          std::min(total, steps * (i + 1) / parts * step)};
}

// Returns the size of the largest of these parts.
inline int64_t LargestPart(int64_t total, int64_t parts, int64_t step) {
  return std::min(total, CeilDivide(CeilDivide(total, step), parts) * step);
}

}  // namespace resnet

#endif  // RESNET_NATIVE_RANGES_H_
