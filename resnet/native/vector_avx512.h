// Vectors of 16 floats with AVX-512. Code that uses them must not run on other CPUs.
//
// vector_avx2.h has the same functions, so that kernels are written once; those for
// bfloat16 are here only. With AVX512_BF16, whose kernels are for bfloat16, an instruction
// rounds to it.

#ifndef RESNET_NATIVE_VECTOR_AVX512_H_
#define RESNET_NATIVE_VECTOR_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "resnet/native/bf16.h"

#if defined(RESNET_AVX512_AMX)
#define RESNET_ISA avx512_amx
#define RESNET_FOR_EACH_TYPE(M) M(Bf16)
#define RESNET_TARGET \
  "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16,amx-tile,amx-bf16"
#elif defined(RESNET_AVX512_BF16)
#define RESNET_ISA avx512_bf16
#define RESNET_FOR_EACH_TYPE(M) M(Bf16)
#define RESNET_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16"
#else
#define RESNET_ISA avx512
#define RESNET_FOR_EACH_TYPE(M) M(float) M(Bf16)
#define RESNET_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#endif

// Between the two, functions and lambdas are compiled for the instruction set. Compiler
// options would do so for the standard library's templates too, of which the linker keeps
// one copy, to be run on any CPU.
#define RESNET_PRAGMA(text) RESNET_PRAGMA_OF(text)  // Expands macros in the text.
#define RESNET_PRAGMA_OF(text) _Pragma(#text)
#ifdef __clang__
#define RESNET_BEGIN_TARGET           \
  RESNET_PRAGMA(clang attribute push( \
      __attribute__((target(RESNET_TARGET))), apply_to = function))
#define RESNET_END_TARGET RESNET_PRAGMA(clang attribute pop)
#else
#define RESNET_BEGIN_TARGET       \
  RESNET_PRAGMA(GCC push_options) \
  RESNET_PRAGMA(GCC target(RESNET_TARGET))
#define RESNET_END_TARGET RESNET_PRAGMA(GCC pop_options)
#endif

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

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
// Makes what was streamed visible to other threads before later stores.
inline void FinishStreams() { _mm_sfence(); }

inline Vector Widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vector Load(const Bf16* from) {
  return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Vector Load(const Bf16* from, Mask mask) {
  return Widen(_mm256_maskz_loadu_epi16(mask, from));
}
// Rounds to the nearest bfloat16, and to the even one of two.
inline __m256i Round(Vector value) {
#if defined(RESNET_AVX512_BF16) || defined(RESNET_AVX512_AMX)
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  return reinterpret_cast<const __m256i&>(rounded);
#else
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i is_odd =
      _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  // The sum could turn NaN into infinity. It is made quiet, as the instruction does.
  const Mask is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, is_nan, _mm512_srli_epi32(bits, 16),
                                 _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(rounded);
#endif
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

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_VECTOR_AVX512_H_
