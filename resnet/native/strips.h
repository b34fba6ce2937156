// Short pieces of feature maps as floats, for loops that the compiler turns into vectors.

#ifndef RESNET_NATIVE_STRIPS_H_
#define RESNET_NATIVE_STRIPS_H_

#include <cstdint>

#include "resnet/native/bf16.h"

namespace resnet {

#define INLINED inline __attribute__((always_inline))

constexpr int64_t kStrip = 512;  // Values that are computed together, in the L1 cache.

// The values from `from` on as floats: these themselves, or widened in `buffer`.
INLINED const float* Widened(const float* from, int64_t, float*) { return from; }
INLINED const float* Widened(const Bf16* from, int64_t size, float* buffer) {
  for (int64_t i = 0; i < size; ++i) {
    buffer[i] = WidenBfloat16(from[i].bits);
  }
  return buffer;
}

// Where to compute the floats that `Narrow` then stores in `to`.
INLINED float* Unrounded(float* to, float*) { return to; }
INLINED float* Unrounded(Bf16*, float* buffer) { return buffer; }
INLINED void Narrow(const float*, int64_t, float*) {}
INLINED void Narrow(const float* from, int64_t size, Bf16* to) {
  for (int64_t i = 0; i < size; ++i) to[i].bits = RoundToBfloat16(from[i]);
}

}  // namespace resnet

#endif  // RESNET_NATIVE_STRIPS_H_
