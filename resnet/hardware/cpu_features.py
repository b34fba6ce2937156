"""What this CPU can compute with, read before TensorFlow starts. Standard library only.

Some virtual machines announce AMX but hide the CPUID leaf that describes its tiles.
oneDNN then configures empty tiles, and the process dies with an illegal instruction at
the first bfloat16 convolution.
"""

import ctypes
import mmap
import platform
from collections.abc import Callable
from pathlib import Path

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
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # The latter on Arm.
            return frozenset(value.split())
    return frozenset()


def has_bf16(features: frozenset[str]) -> bool:
    """Returns whether the CPU multiplies bfloat16 numbers itself."""
    return bool(features & {"amx_bf16", "avx512_bf16", "bf16"})


def amx_is_hidden(features: frozenset[str], cpuid: Cpuid | None = None) -> bool:
    """Returns whether AMX is announced but can't be used as oneDNN does.

    Args:
        features: As `flags` gives them.
        cpuid: `cpuid(leaf, subleaf)` returns (eax, ebx, ecx, edx); the processor's own
            unless given. Where it can't be asked, AMX counts as hidden: float32 loses
            nothing by it.
    """
    if "amx_tile" not in features:
        return False
    try:
        registers = (cpuid or _ask_processor)(_TILE_LEAF, _TILE_PALETTE)
    except OSError:
        return True
    return registers == (0, 0, 0, 0)


def _ask_processor(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    """Runs the CPUID instruction.

    Raises:
        OSError: If this is no x86-64 processor, or the system forbids a process to run
            code that it wrote itself.
    """
    if platform.machine() != "x86_64":
        raise OSError("CPUID is an instruction of x86-64")
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
        del anchor, function  # Or the page can't be closed.
    eax, ebx, ecx, edx = registers
    return eax, ebx, ecx, edx
