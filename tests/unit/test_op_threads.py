"""The compiled ops on other numbers of threads than the tests' process has."""

import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
from tests.unit import test_compression_ops, test_convolution, test_normalization

for dtype in test_normalization.TYPES:
    for layer in test_convolution.RESNET50[::2]:
        test_convolution.test_those_of_resnet50_are_as_exact_as_stock_ops(*layer, dtype)
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
for compression in test_compression_ops.METHODS:
    test_compression_ops.test_the_op_gives_the_bytes_of_the_reference(compression)
"""


@pytest.mark.parametrize("num_threads", [1, 5])
def test_any_number_of_threads_gives_right_results_and_always_the_same(num_threads):
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, "TF_NUM_INTRAOP_THREADS": str(num_threads)},
        check=True,
    )
