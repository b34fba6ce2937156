// Vectors of 8 floats with AVX2 and FMA. Code that uses them must not run on other CPUs.
//
// vector_avx512.h has the same functions, and says what they do.

#ifndef RESNET_NATIVE_VECTOR_AVX2_H_
#define RESNET_NATIVE_VECTOR_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#define RESNET_ISA avx2
#define RESNET_FOR_EACH_TYPE(M) M(float)

#define RESNET_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define RESNET_BEGIN_TARGET           \
  RESNET_PRAGMA(clang attribute push( \
      __attribute__((target("avx2,fma"))), apply_to = function))
#define RESNET_END_TARGET RESNET_PRAGMA(clang attribute pop)
#else
#define RESNET_BEGIN_TARGET       \
  RESNET_PRAGMA(GCC push_options) \
  RESNET_PRAGMA(GCC target("avx2,fma"))
#define RESNET_END_TARGET RESNET_PRAGMA(GCC pop_options)
#endif

RESNET_BEGIN_TARGET

namespace resnet::avx2 {

using Vector = __m256;
using Mask = __m256i;  // All bits of a lane are set, or none.

constexpr int kLanes = 8;
constexpr int kRegisters = 16;
constexpr bool kMasksAreFree = false;

inline Vector Zero() { return _mm256_setzero_ps(); }
inline Vector Set(float value) { return _mm256_set1_ps(value); }
inline Vector Add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector Sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline Vector Mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
inline Vector MulAdd(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector MulSub(Vector a, Vector b, Vector c) { return _mm256_fmsub_ps(a, b, c); }
inline Vector SubMul(Vector a, Vector b, Vector c) { return _mm256_fnmadd_ps(a, b, c); }
inline Vector Max(Vector a, Vector b) { return _mm256_max_ps(a, b); }

inline Mask FirstLanes(int64_t count) {
  const Mask lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int valid = count >= kLanes ? kLanes : static_cast<int>(count);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(valid), lane);
}
inline Mask AllOrNone(uint16_t mask) {
  return _mm256_set1_epi16(static_cast<int16_t>(mask));
}
inline Mask Both(Mask a, Mask b) { return _mm256_and_si256(a, b); }
inline bool IsEmpty(Mask mask) { return _mm256_testz_si256(mask, mask); }
inline uint32_t BitsOf(Mask mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}
inline Mask FromBits(uint32_t bits) {
  const Mask bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const Mask all = _mm256_set1_epi32(static_cast<int>(bits));
  return _mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit);
}
inline Mask Positive(Vector a) {
  return _mm256_castps_si256(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_GT_OQ));
}
inline Vector Keep(Mask mask, Vector a) {
  return _mm256_and_ps(_mm256_castsi256_ps(mask), a);
}

inline Vector Load(const float* from) { return _mm256_loadu_ps(from); }
inline Vector Load(const float* from, Mask mask) { return _mm256_maskload_ps(from, mask); }
inline void Store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
inline void Store(float* to, Mask mask, Vector value) {
  _mm256_maskstore_ps(to, mask, value);
}
inline void Stream(float* to, Vector value) { _mm256_stream_ps(to, value); }
inline void FinishStreams() { _mm_sfence(); }

// Transposes an 8x8 matrix.
inline void Transpose(Vector rows[kLanes]) {
  Vector t[kLanes];
  for (int i = 0; i < kLanes; i += 4) {  // t[i + j] holds column j of the 4x4 blocks.
    const Vector a = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    const Vector b = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const Vector c = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const Vector d = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    t[i] = _mm256_shuffle_ps(a, b, 0x44);
    t[i + 1] = _mm256_shuffle_ps(a, b, 0xee);
    t[i + 2] = _mm256_shuffle_ps(c, d, 0x44);
    t[i + 3] = _mm256_shuffle_ps(c, d, 0xee);
  }
  for (int j = 0; j < 4; ++j) {
    rows[j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x20);
    rows[4 + j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x31);
  }
}

}  // namespace resnet::avx2

RESNET_END_TARGET

#endif  // RESNET_NATIVE_VECTOR_AVX2_H_
