"""The instruction sets for which the compiled ops have kernels, and the one in use.

The library uses the best one that the CPU has. The environment variable
`RESNET_MAX_CPU_ISA`, or `limit`, excludes those above a named one, as
`ONEDNN_MAX_CPU_ISA` does for oneDNN.
"""

import ctypes
import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from resnet.base.errors import UserError

VARIABLE = "RESNET_MAX_CPU_ISA"

_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AVX512_BF16 = _AVX512 | {"avx512_bf16"}
_OF_X86 = {
    "AVX2": _AVX2,
    "AVX512_CORE": _AVX512,
    "AVX512_CORE_BF16": _AVX512_BF16,
    "AVX512_CORE_AMX": _AVX512_BF16 | {"amx_tile", "amx_bf16"},
}


def of_machine(machine: str) -> dict[str, frozenset[str]]:
    """Returns the instruction sets of an architecture, by rising speed.

    Each has the names that Linux has for what it needs. Those of x86 are oneDNN's.
    Without any, convolutions and normalization are TensorFlow's ops.
    """
    sets = {"NEON": frozenset({"asimd"})} if machine == "aarch64" else _OF_X86
    return {"NONE": frozenset(), **sets}


CPU_FLAGS = of_machine(platform.machine())
NAMES = tuple(CPU_FLAGS)  # The library numbers them in this order.
# The first with kernels for float32, and with those for bfloat16 as well.
FIRST_IN_FLOAT32 = NAMES[1]
FIRST_IN_BFLOAT16 = "NEON" if "NEON" in NAMES else "AVX512_CORE"


def index(name: str) -> int:
    """Returns the place of an instruction set in `NAMES`, or raises UserError."""
    if name.upper() not in NAMES:
        raise UserError(
            f"{VARIABLE} must be one of {', '.join(NAMES)}; got {name!r}. Without it,"
            " the best one of this CPU is used."
        )
    return NAMES.index(name.upper())


def limit_from(environ: Mapping[str, str]) -> str:
    """Returns the limit that an environment sets, by default the last of `NAMES`."""
    return NAMES[index(environ.get(VARIABLE) or NAMES[-1])]


class Kernels:
    """The kernels of a loaded library of compiled ops."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def best(self) -> str:
        """Returns the best instruction set that CPU and library have."""
        return NAMES[self._library.resnet_best_instruction_set()]

    def current(self) -> str:
        """Returns the instruction set whose kernels are used."""
        return NAMES[self._library.resnet_instruction_set()]

    def widen_bf16(self, is_widened: bool) -> None:
        """Makes the ops multiply bfloat16 as float32, or by AVX512_BF16 if in use."""
        self._library.resnet_widen_bf16(ctypes.c_bool(is_widened))

    def limit(self, name: str) -> None:
        """Makes the ops use at most this instruction set, from their next calls on."""
        self._library.resnet_limit_instruction_set(index(name))


@functools.cache
def kernels(library: Path) -> Kernels:
    """Returns the kernels of a loaded library, limited as the environment says."""
    limit = limit_from(os.environ)
    loaded = Kernels(library)
    loaded.limit(limit)
    return loaded
