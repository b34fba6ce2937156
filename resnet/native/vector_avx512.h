// Vectors of 16 floats with AVX-512. Code that uses them must not run on other CPUs.
//
// vector_avx2.h has the same functions, so that kernels are written once. bfloat16 is
// there only with AVX512_BF16: its functions must not be called without it.

#ifndef RESNET_NATIVE_VECTOR_AVX512_H_
#define RESNET_NATIVE_VECTOR_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "resnet/native/convolution.h"

#define RESNET_ISA avx512
#define RESNET_HAS_BF16

// Between the two, functions and lambdas are compiled for the instruction set. Compiler
// options would do so for the standard library's templates too, of which the linker keeps
// one copy, to be run on any CPU.
#define RESNET_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define RESNET_BEGIN_TARGET           \
  RESNET_PRAGMA(clang attribute push( \
      __attribute__((                 \
          target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16"))), \
      apply_to = function))
#define RESNET_END_TARGET RESNET_PRAGMA(clang attribute pop)
#else
#define RESNET_BEGIN_TARGET       \
  RESNET_PRAGMA(GCC push_options) \
  RESNET_PRAGMA(GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16"))
#define RESNET_END_TARGET RESNET_PRAGMA(GCC pop_options)
#endif

RESNET_BEGIN_TARGET

namespace resnet::avx512 {

using Vector = __m512;
using Mask = __mmask16;  // Some of the lanes.

constexpr int kLanes = 16;
constexpr int kRegisters = 32;
constexpr bool kMasksAreFree = true;  // A masked load is as fast as any other.

inline Vector Zero() { return _mm512_setzero_ps(); }
inline Vector Set(float value) { return _mm512_set1_ps(value); }
inline Vector Add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
inline Vector Sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
inline Vector Mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
// a * b + c, a * b - c and c - a * b, rounded once.
inline Vector MulAdd(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector MulSub(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }
inline Vector SubMul(Vector a, Vector b, Vector c) { return _mm512_fnmadd_ps(a, b, c); }
// The larger one; b if either is NaN.
inline Vector Max(Vector a, Vector b) { return _mm512_max_ps(a, b); }

// Returns the mask of the first `count` lanes, at least one; of all if it is larger.
inline Mask FirstLanes(int64_t count) {
  return count >= kLanes ? 0xffff : (1 << count) - 1;
}
// Returns all lanes for 0xffff and none for 0.
inline Mask AllOrNone(uint16_t mask) { return mask; }
inline Mask Both(Mask a, Mask b) { return a & b; }
inline bool IsEmpty(Mask mask) { return mask == 0; }
// A mask as bits, the first lane's is the lowest. Higher bits are ignored.
inline uint32_t BitsOf(Mask mask) { return mask; }
inline Mask FromBits(uint32_t bits) { return bits; }
// Returns the lanes above 0.
inline Mask Positive(Vector a) {
  return _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_GT_OQ);
}
// Sets the other lanes to 0.
inline Vector Keep(Mask mask, Vector a) { return _mm512_maskz_mov_ps(mask, a); }

inline Vector Load(const float* from) { return _mm512_loadu_ps(from); }
// Other lanes are 0, and their memory is not read.
inline Vector Load(const float* from, Mask mask) {
  return _mm512_maskz_loadu_ps(mask, from);
}
inline void Store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
inline void Store(float* to, Mask mask, Vector value) {
  _mm512_mask_storeu_ps(to, mask, value);
}
// Writes around the caches, to an aligned address.
inline void Stream(float* to, Vector value) { _mm512_stream_ps(to, value); }

inline Vector Widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vector Load(const Bf16* from) {
  return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Vector Load(const Bf16* from, Mask mask) {
  return Widen(_mm256_maskz_loadu_epi16(mask, from));
}
inline __m256i Round(Vector value) {
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  return reinterpret_cast<const __m256i&>(rounded);
}
inline void Store(Bf16* to, Vector value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), Round(value));
}
inline void Store(Bf16* to, Mask mask, Vector value) {
  _mm256_mask_storeu_epi16(to, mask, Round(value));
}

inline Vector UnpackLow(Vector a, Vector b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
inline Vector UnpackHigh(Vector a, Vector b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

// Transposes a 16x16 matrix.
inline void Transpose(Vector rows[kLanes]) {
  Vector t[kLanes];
  for (int i = 0; i < kLanes; i += 4) {  // rows[i + j] holds column j of the 4x4 blocks.
    const Vector a = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    const Vector b = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const Vector c = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    const Vector d = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    rows[i] = UnpackLow(a, b);
    rows[i + 1] = UnpackHigh(a, b);
    rows[i + 2] = UnpackLow(c, d);
    rows[i + 3] = UnpackHigh(c, d);
  }
  for (int j = 0; j < 4; ++j) {
    const Vector a = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0x88);
    const Vector b = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0xdd);
    const Vector c = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0x88);
    const Vector d = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0xdd);
    t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
    t[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
    t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
  for (int i = 0; i < kLanes; ++i) rows[i] = t[i];
}

}  // namespace resnet::avx512

RESNET_END_TARGET

#endif  // RESNET_NATIVE_VECTOR_AVX512_H_
