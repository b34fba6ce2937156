"""Runs a module's tests with stock ops, and with the kernels of each instruction set.

It is for the ops that have kernels for any CPU and any dtype, such as pooling. A module
imports `kernels`; pytest finds it there.
"""

from collections.abc import Iterator

import pytest

from resnet import native
from resnet.native import instruction_sets

# AVX512_CORE_BF16 has the kernels of AVX512_CORE.
COMPILED = ("NONE", *(native.usable_instruction_sets() or ())[:2])
only_compiled = pytest.mark.parametrize("kernels", COMPILED, indirect=True)


@pytest.fixture(params=["stock", *COMPILED], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the instruction set whose kernels are used, or "stock"."""
    if request.param == "stock":
        with native.disabled():
            yield request.param
        return
    before = instruction_sets.kernels(native.OPS_LIBRARY).current()
    native.limit_instruction_set(request.param)
    yield request.param
    native.limit_instruction_set(before)
