// Division and rounding up of numbers that aren't negative.

#ifndef RESNET_NATIVE_ROUNDING_H_
#define RESNET_NATIVE_ROUNDING_H_

#include <cstdint>

namespace resnet {

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t value, int64_t step) {
  return CeilDivide(value, step) * step;
}

}  // namespace resnet

#endif  // RESNET_NATIVE_ROUNDING_H_
