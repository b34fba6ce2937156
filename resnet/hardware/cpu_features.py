"""Reads the features of this CPU before TensorFlow starts. Standard library only.

Some virtual machines report AMX but hide the CPUID leaf that describes its tiles.
oneDNN then configures empty tiles, and the process dies with an illegal instruction at
the first bfloat16 convolution.
"""

import ctypes
import mmap
import platform
from collections.abc import Callable
from pathlib import Path

from resnet.base import limits

# Linux has numbers in place of the names of Arm's cores.
_ARM_CORES = {
    "0x41 0xd08": "Cortex-A72",
    "0x41 0xd0b": "Cortex-A76",
    "0x41 0xd0c": "Neoverse N1",
    "0x41 0xd40": "Neoverse V1",
    "0x41 0xd4f": "Neoverse V2",
    "0x46 0x001": "A64FX",
}

Cpuid = Callable[[int, int], tuple[int, int, int, int]]

_TILE_LEAF = 0x1D  # Intel's manual, volume 2A, CPUID: tile information.
_TILE_PALETTE = 1

# int cpuid(edi: leaf, esi: subleaf, rdx: four uint32), in the System V convention:
#   push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid;
#   mov [r8], eax; mov [r8+4], ebx; mov [r8+8], ecx; mov [r8+12], edx; pop rbx; ret
_CPUID_CODE = bytes.fromhex(
    "53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3"
)


def flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns the feature names that Linux lists for the first processor."""
    return frozenset(_first(("flags", "Features"), cpuinfo).split())  # The latter: Arm.


def model_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the name of the first processor, "unknown CPU" where Linux has none."""
    fields = ("CPU implementer", "CPU part")
    part = " ".join(_first((field,), cpuinfo) for field in fields).strip()
    name = _first(("model name",), cpuinfo) or _ARM_CORES.get(part, part)
    return name or "unknown CPU"


def _first(names: tuple[str, ...], cpuinfo: Path) -> str:
    """Returns the first value of some fields; an empty text if there is none."""
    for line in limits.read(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""


def has_bf16(features: frozenset[str]) -> bool:
    """Returns whether the CPU has instructions that multiply bfloat16 numbers."""
    return bool(features & {"amx_bf16", "avx512_bf16", "bf16"})


def amx_is_hidden(features: frozenset[str], cpuid: Cpuid | None = None) -> bool:
    """Returns whether the CPU, of some `flags`, reports AMX but hides its tiles.

    If the instruction CPUID can't be run, AMX counts as hidden, which disables it. In
    place of it, `cpuid` returns registers (eax, ebx, ecx, edx) of a leaf and subleaf.
    """
    if "amx_tile" not in features:
        return False
    try:
        registers = (cpuid or _run_cpuid)(_TILE_LEAF, _TILE_PALETTE)
    except OSError:
        return True
    return registers == (0, 0, 0, 0)


def _run_cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    """Returns eax, ebx, ecx and edx after CPUID; OSError if it can't be run."""
    if platform.machine() != "x86_64":
        raise OSError(f"CPUID needs an x86-64 processor, not {platform.machine()}")
    with mmap.mmap(
        -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    ) as page:
        page.write(_CPUID_CODE)
        anchor = ctypes.c_char.from_buffer(page)
        function = ctypes.CFUNCTYPE(
            None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p
        )(ctypes.addressof(anchor))
        registers = (ctypes.c_uint32 * 4)()
        function(leaf, subleaf, ctypes.addressof(registers))
        del anchor, function  # They keep the page from being closed.
    return registers[0], registers[1], registers[2], registers[3]
