"""Which kernels of the compiled ops are used, for tests."""

import os

from resnet import native
from resnet.native import instruction_sets


def usable_instruction_sets() -> tuple[str, ...]:
    """Returns those that CPU, library and environment allow, the slowest first.

    They are names of `instruction_sets.NAMES`, without "NONE"; empty without a library.
    """
    if native.ops() is None:
        return ()
    best = instruction_sets.index(instruction_sets.kernels(native.OPS_LIBRARY).best())
    limit = instruction_sets.index(instruction_sets.limit_from(os.environ))
    return instruction_sets.NAMES[1 : min(best, limit) + 1]


def limit_instruction_set(name: str) -> None:
    """Makes the compiled ops use at most this instruction set, which must be loaded.

    Graphs that are built later use stock ops where the remaining kernels lack a dtype.
    """
    instruction_sets.kernels(native.OPS_LIBRARY).limit(name)
    for lookup in (native.fast_ops, native.convolutions):
        lookup.cache_clear()
