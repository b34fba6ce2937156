"""What needs a process that has not imported TensorFlow yet.

That is how the programs start it, and the compiled ops on other numbers of threads than
the tests' process has.
"""

import pathlib
import subprocess
import sys

import pytest

# TensorFlow takes the number of threads from the environment when the first op runs. To
# import it takes longer than the ops: forked processes share one import.
PROGRAM = """
import importlib.util
import os
import sys
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup

startup.start_tensorflow(Communicator(ProcessInfo()))
assert "keras" in sys.modules
for name in ("sklearn", "matplotlib"):
    assert name not in sys.modules
    assert importlib.util.find_spec(name)  # It can be imported.
print("started", flush=True)

import numpy as np


def check() -> None:
    from resnet import native
    from tests.unit import (
        test_compression,
        test_convolution,
        test_normalization,
        test_optimizers,
    )

    # The kernels in use have all dtypes only with AVX-512.
    dtypes = [one for one in test_normalization.TOLERANCE if native.fast_ops(one)]
    assert dtypes
    for dtype in dtypes:
        for layer in test_convolution.RESNET50[1::2]:
            test_convolution.test_those_of_resnet50_are_as_exact_as_stock_ops(
                *layer, dtype
            )
        inputs = test_normalization.make_inputs(
            test_normalization.MANY_ROWS, dtype, residual=True, relu=True, num_copies=2
        )
        found = [
            test_normalization.run(test_normalization.op, inputs) for _ in range(3)
        ]
        for again in found[1:]:
            for one, other in zip(found[0], again, strict=True):
                np.testing.assert_array_equal(one, other)
        test_normalization.assert_right(inputs, found[0], test_normalization.TOLERANCE)
    test_convolution.test_the_same_call_gives_the_same_bits()
    for compression in test_compression.CASES[::3]:
        test_compression.test_the_op_gives_the_bytes_of_the_reference(compression)
    print(*test_optimizers.digests_of_updates(), flush=True)


for num_threads in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.environ["TF_NUM_INTRAOP_THREADS"] = num_threads
        check()
        print(num_threads, "threads", flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"failed on {num_threads} threads")
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """Returns the lines of a process that starts TensorFlow and then runs the ops."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "1", "5"],
        cwd=pathlib.Path(__file__).parents[2],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [*done.stdout.splitlines(), f"exit code {done.returncode}"]


def test_tensorflow_starts_without_packages_that_only_keras_plots_need(printed):
    assert printed[0] == "started"


def test_any_number_of_threads_gives_right_results_and_always_the_same(printed):
    assert printed[2::2] == ["1 threads", "5 threads"]
    assert printed[-1] == "exit code 0"


def test_updates_are_the_same_for_any_number_of_threads(printed):
    assert len(printed[1].split()) == 3
    assert printed[1] == printed[3]
