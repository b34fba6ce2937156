// Chooses the kernels: when the library is loaded by the CPU's features, afterwards by a limit.

#include "resnet/native/instruction_sets.h"

#include <algorithm>
#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "resnet/native/kernels.h"

namespace resnet {

// A compiler that can't build an instruction set's kernels leaves them out of the library.
namespace avx2 {
extern const KernelSet kKernelSet __attribute__((weak));
}
namespace avx512 {
extern const KernelSet kKernelSet __attribute__((weak));
}
namespace avx512_bf16 {
extern const KernelSet kKernelSet __attribute__((weak));
}
namespace avx512_amx {
extern const ConvolutionKernels<Bf16> kConvolutions __attribute__((weak));
}
namespace neon {
extern const KernelSet kKernelSet __attribute__((weak));
}
namespace any_cpu {
extern const KernelSet kKernelSet;
}

namespace {

// By rising speed, like the names in native/instruction_sets.py. On Arm there is one.
enum InstructionSet : int { kAnyCpu, kAvx2, kAvx512, kAvx512Bf16, kAvx512Amx, kNeon = 1 };

#ifdef __x86_64__
// Returns whether this process may use AMX. The leaf of CPUID that describes the tiles
// isn't read: they work also where a virtual machine hides it.
bool CanUseAmx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  // From linux/arch/x86/include/uapi/asm/prctl.h; the number of the tiles' data is 18. Linux
  // refuses what it, or the virtual machine, has not enabled.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

InstructionSet FindBest() {
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  // A limit may lower AVX-512 to AVX2, so it needs the kernels of both.
  if (!avx2 || &avx2::kKernelSet == nullptr) return kAnyCpu;
  if (avx512 && &avx512::kKernelSet != nullptr) {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx);
    const bool has_bf16 = (eax >> 5 & 1) != 0 && &avx512_bf16::kKernelSet != nullptr;
    if (!has_bf16) return kAvx512;
    return &avx512_amx::kConvolutions != nullptr && CanUseAmx() ? kAvx512Amx : kAvx512Bf16;
  }
  return kAvx2;
#elif defined(__aarch64__)
  const bool has_neon = (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0;
  return has_neon && &neon::kKernelSet != nullptr ? kNeon : kAnyCpu;
#else
  return kAnyCpu;
#endif
}

const InstructionSet kBest = FindBest();
std::atomic<int> current{kBest};
std::atomic<bool> is_bf16_widened{false};

}  // namespace

KernelSet CurrentKernels() {
  const int now = current.load(std::memory_order_relaxed);
  if (now == kAnyCpu) return any_cpu::kKernelSet;
#ifdef __aarch64__
  return neon::kKernelSet;
#else
  if (now == kAvx2) return avx2::kKernelSet;
  KernelSet kernels = avx512::kKernelSet;
  if (now == kAvx512Amx) {
    static const Kernels<Bf16> with_amx = [] {
      Kernels<Bf16> best = *avx512_bf16::kKernelSet.bf16;
      static_cast<ConvolutionKernels<Bf16>&>(best) = avx512_amx::kConvolutions;
      return best;
    }();
    kernels.bf16 = &with_amx;
  } else if (now == kAvx512Bf16 && !is_bf16_widened) {
    kernels.bf16 = avx512_bf16::kKernelSet.bf16;
  }
  return kernels;
#endif
}

}  // namespace resnet

int resnet_best_instruction_set() { return resnet::kBest; }

int resnet_instruction_set() { return resnet::current.load(); }

void resnet_widen_bf16(bool is_widened) { resnet::is_bf16_widened = is_widened; }

void resnet_limit_instruction_set(int most) {
  resnet::current.store(std::min<int>(most, resnet::kBest));
}
