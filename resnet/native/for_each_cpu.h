// Compiles a function for several instruction sets; the best version for the CPU is chosen
// when the library is loaded. Haswell stands for AVX2 and FMA together: GCC takes
// "avx2,fma" for two versions, each with only one of them.

#ifndef RESNET_NATIVE_FOR_EACH_CPU_H_
#define RESNET_NATIVE_FOR_EACH_CPU_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define FOR_EACH_CPU
#endif

#endif  // RESNET_NATIVE_FOR_EACH_CPU_H_
