// Vectors of 4 floats with NEON, which every 64-bit Arm processor has.
//
// vector_avx512.h has the same functions, and says what they do. Numbers of bfloat16 are
// widened when they are loaded, and rounded when they are stored.

#ifndef RESNET_NATIVE_VECTOR_NEON_H_
#define RESNET_NATIVE_VECTOR_NEON_H_

#include <arm_neon.h>

#include <algorithm>
#include <cstdint>

#include "resnet/native/bf16.h"

#define RESNET_ISA neon
#define RESNET_FOR_EACH_TYPE(M) M(float) M(Bf16)
#define RESNET_BEGIN_TARGET
#define RESNET_END_TARGET

namespace resnet::neon {

using Vector = float32x4_t;
using Mask = uint32x4_t;  // All bits of a lane are set, or none.

constexpr int kLanes = 4;
constexpr int kRegisters = 32;
constexpr bool kMasksAreFree = false;

inline Vector Zero() { return vdupq_n_f32(0); }
inline Vector Set(float value) { return vdupq_n_f32(value); }
inline Vector Add(Vector a, Vector b) { return vaddq_f32(a, b); }
inline Vector Sub(Vector a, Vector b) { return vsubq_f32(a, b); }
inline Vector Mul(Vector a, Vector b) { return vmulq_f32(a, b); }
inline Vector MulAdd(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
inline Vector MulSub(Vector a, Vector b, Vector c) { return vfmaq_f32(vnegq_f32(c), a, b); }
inline Vector SubMul(Vector a, Vector b, Vector c) { return vfmsq_f32(c, a, b); }
// Unlike vmaxq_f32, which returns NaN if either is NaN.
inline Vector Max(Vector a, Vector b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }

inline Mask FirstLanes(int64_t count) {
  const uint32x4_t lane = {0, 1, 2, 3};
  return vcgtq_u32(vdupq_n_u32(std::min<int64_t>(count, kLanes)), lane);
}
inline Mask AllOrNone(uint16_t mask) { return vdupq_n_u32(mask ? ~0u : 0u); }
inline Mask Both(Mask a, Mask b) { return vandq_u32(a, b); }
inline bool IsEmpty(Mask mask) { return vmaxvq_u32(mask) == 0; }
inline uint32_t BitsOf(Mask mask) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(mask, bit));
}
inline Mask FromBits(uint32_t bits) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return vtstq_u32(vdupq_n_u32(bits), bit);
}
inline Mask Positive(Vector a) { return vcgtzq_f32(a); }
inline Vector Keep(Mask mask, Vector a) {
  return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(a)));
}

inline uint16x4_t LoadHalves(const Bf16* from) {
  return vld1_u16(reinterpret_cast<const uint16_t*>(from));
}
inline Vector Widen(uint16x4_t bits) {
  return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
}
// Rounds to the nearest bfloat16, and to the even one of two. NaN is made quiet.
inline uint16x4_t Round(Vector value) {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t is_odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t half = vaddq_u32(is_odd, vdupq_n_u32(0x7fff));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  const uint32x4_t is_number = vceqq_f32(value, value);
  return vshrn_n_u32(vbslq_u32(is_number, vaddq_u32(bits, half), quiet), 16);
}

inline Vector Load(const float* from) { return vld1q_f32(from); }
inline Vector Load(const Bf16* from) { return Widen(LoadHalves(from)); }
inline void Store(float* to, Vector value) { vst1q_f32(to, value); }
inline void Store(Bf16* to, Vector value) {
  vst1_u16(reinterpret_cast<uint16_t*>(to), Round(value));
}
// NEON has no masked loads and stores: lanes are copied one by one.
template <typename T>
Vector Load(const T* from, Mask mask) {
  T lanes[kLanes] = {};
  for (int i = 0; i < kLanes; ++i) {
    if (mask[i]) lanes[i] = from[i];
  }
  return Load(lanes);
}
template <typename T>
void Store(T* to, Mask mask, Vector value) {
  T lanes[kLanes];
  Store(lanes, value);
  for (int i = 0; i < kLanes; ++i) {
    if (mask[i]) to[i] = lanes[i];
  }
}
// Processors detect stores of whole lines themselves.
template <typename T>
void Stream(T* to, Vector value) {
  Store(to, value);
}
inline void FinishStreams() {}

// Transposes a 4x4 matrix.
inline void Transpose(Vector rows[kLanes]) {
  const float32x4x2_t a = vtrnq_f32(rows[0], rows[1]), b = vtrnq_f32(rows[2], rows[3]);
  rows[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
  rows[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
  rows[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
  rows[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

}  // namespace resnet::neon

#endif  // RESNET_NATIVE_VECTOR_NEON_H_
