// The vectors of the instruction set that a kernel is compiled for.
//
// install/build_native.sh compiles each kernel once for each instruction set, whose
// namespace is RESNET_ISA, and defines RESNET_AVX2, RESNET_AVX512, RESNET_AVX512_BF16,
// RESNET_AVX512_AMX, RESNET_NEON, or RESNET_ANY_CPU, for which there are no vectors. RESNET_FOR_EACH_TYPE(M) is M(T) for each
// number type that an instruction set has kernels for.

#ifndef RESNET_NATIVE_VECTOR_H_
#define RESNET_NATIVE_VECTOR_H_

#if defined(RESNET_AVX512) || defined(RESNET_AVX512_BF16) || defined(RESNET_AVX512_AMX)
#include "resnet/native/vector_avx512.h"
#elif defined(RESNET_AVX2)
#include "resnet/native/vector_avx2.h"
#elif defined(RESNET_NEON)
#include "resnet/native/vector_neon.h"
#elif defined(RESNET_ANY_CPU)
#define RESNET_ISA any_cpu
#define RESNET_BEGIN_TARGET
#define RESNET_END_TARGET
#else
#error "a kernel needs one of the macros that build_native.sh defines"
#endif

#ifndef RESNET_ANY_CPU

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

inline Vector Mul(float a, Vector b) { return Mul(Set(a), b); }
inline Vector MulAdd(float a, Vector b, Vector c) { return MulAdd(Set(a), b, c); }

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_ANY_CPU

#endif  // RESNET_NATIVE_VECTOR_H_
