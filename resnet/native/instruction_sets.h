// What native/instruction_sets.py calls.

#ifndef RESNET_NATIVE_INSTRUCTION_SETS_H_
#define RESNET_NATIVE_INSTRUCTION_SETS_H_

// Only such functions are visible outside of the library (build_native.sh).
#pragma GCC visibility push(default)
extern "C" {

// Returns the best instruction set that this CPU has and this library has kernels for: 0
// for none, 1 for AVX2 and FMA, 2 for AVX-512, 3 for AVX-512 with AVX512_BF16, 4 for the
// latter with AMX; on Arm 1 for NEON.
int resnet_best_instruction_set();

// Returns the one whose kernels are used.
int resnet_instruction_set();

// Makes the ops multiply bfloat16 numbers as float32, in spite of AVX512_BF16, or not; not with AMX.
void resnet_widen_bf16(bool is_widened);

// Makes the ops use kernels of at most this instruction set, from their next calls on.
void resnet_limit_instruction_set(int most);

}  // extern "C"
#pragma GCC visibility pop

#endif  // RESNET_NATIVE_INSTRUCTION_SETS_H_
