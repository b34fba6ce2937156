// bfloat16, and the bits of floats.

#ifndef RESNET_NATIVE_BF16_H_
#define RESNET_NATIVE_BF16_H_

#include <cstdint>
#include <cstring>

#ifdef __FAST_MATH__
#error "Bits that all ranks must agree on, and NaN, need arithmetic without -ffast-math."
#endif

namespace resnet {

// A bfloat16: the upper half of a float.
struct Bf16 {
  uint16_t bits;
};

inline uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The bits of a float without its sign. Their order is that of magnitudes, and NaN is the
// largest.
inline uint32_t MagnitudeBits(float value) { return BitsOfFloat(value) & 0x7fffffffu; }

// The bits of the nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t RoundToBfloat16(float value) {
  const uint32_t bits = BitsOfFloat(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits | 0x400000u) >> 16;
  return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}
inline float WidenBfloat16(uint16_t bits) { return FloatOfBits(uint32_t{bits} << 16); }

}  // namespace resnet

#endif  // RESNET_NATIVE_BF16_H_
