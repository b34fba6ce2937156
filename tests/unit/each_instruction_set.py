"""Runs a module's tests with the kernels of each instruction set of this machine.

A module imports both names; pytest finds them there. A test with an argument `dtype`
gets the dtypes that an instruction set has kernels for. Ops that have kernels for any
CPU and any dtype, such as pooling, are run with stock ops too: their modules import
`kernels`.
"""

import os
from collections.abc import Iterator

import pytest
import tensorflow as tf

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
    native.fast_ops.cache_clear()


def usable_names() -> list[str]:
    """Returns the usable instruction sets, the slowest first."""
    return list(usable_instruction_sets() or ("NONE",))


def dtypes_of(name: str) -> list[tf.DType]:
    """Returns the dtypes that an instruction set has kernels of its own for."""
    return {
        "AVX512_CORE": [tf.float32, tf.bfloat16],
        "NEON": [tf.float32, tf.bfloat16],
        "AVX512_CORE_BF16": [tf.bfloat16],
        "AVX512_CORE_AMX": [tf.bfloat16],
    }.get(name, [tf.float32])


@pytest.fixture(scope="module", autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the instruction set whose kernels are used."""
    if not usable_instruction_sets():
        yield "NONE"
        return
    before = instruction_sets.kernels(native.OPS_LIBRARY).current()
    limit_instruction_set(request.param)
    yield request.param
    limit_instruction_set(before)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = usable_names()
    if "dtype" in metafunc.fixturenames:
        pairs = [(name, dtype) for name in names for dtype in dtypes_of(name)]
        metafunc.parametrize(
            ("instruction_set", "dtype"),
            pairs,
            indirect=["instruction_set"],
            ids=[f"{name}-{dtype.name}" for name, dtype in pairs],
            scope="module",
        )
    else:
        # AVX512_CORE_BF16 has the float32 kernels of AVX512_CORE.
        names = [name for name in names if name != "AVX512_CORE" or name == names[-1]]
        metafunc.parametrize("instruction_set", names, indirect=True, scope="module")


# AVX512_CORE_BF16 has the kernels of AVX512_CORE.
COMPILED = ("NONE", *(usable_instruction_sets() or ())[:2])
only_compiled = pytest.mark.parametrize("kernels", COMPILED, indirect=True)


@pytest.fixture(params=["stock", *COMPILED], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the instruction set whose kernels are used, or "stock"."""
    if request.param == "stock":
        with native.disabled():
            yield request.param
        return
    before = instruction_sets.kernels(native.OPS_LIBRARY).current()
    limit_instruction_set(request.param)
    yield request.param
    limit_instruction_set(before)
