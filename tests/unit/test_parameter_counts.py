"""The table of parameters against the networks that are built."""

import functools
import math

import pytest

from resnet.models import names, parameter_counts
from resnet.models.parameter_counts import Parameters
from tests.unit.described_model import without_values

# Deeper networks repeat the blocks of these; their totals are in test_models.py.
BUILT = (*names.CIFAR_MODELS, "resnet18", "resnet50d", "inception_bn")
NUM_CLASSES = 7


@functools.cache
def built(name: str) -> Parameters:
    """Returns what is counted in a network that is built."""
    size = names.default_image_size(name)
    shapes = [
        tuple(one.shape)
        for one in without_values(name, NUM_CLASSES, size).trainable_variables
    ]
    kernels = [shape for shape in shapes if len(shape) > 1]
    has_bias = (NUM_CLASSES,) in shapes
    return Parameters(
        kernel_values=sum(map(math.prod, kernels)),
        kernel_sides=sum(math.prod(shape[:-1]) + shape[-1] for shape in kernels),
        vector_values=sum(shape[0] for shape in shapes if len(shape) == 1),
        num_variables=len(shapes),
        num_features=next(s[0] for s in kernels if s[1:] == (NUM_CLASSES,)),
        has_bias=has_bias,
    )


@pytest.mark.parametrize("name", BUILT)
def test_the_table_has_the_variables_of_the_networks(name):
    assert parameter_counts.parameters(name, NUM_CLASSES) == built(name)


@pytest.mark.parametrize(
    ("name", "trained"),
    [
        # Worked out from the papers' tables of layers, as in test_models.py.
        ("resnet18", 11_693_736),
        ("resnet34", 21_801_896),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("resnet200", 64_673_832),
        ("resnet18d", 11_712_968),
        ("resnet50d", 25_576_264),
    ],
)
def test_the_totals_are_the_known_ones(name, trained):
    assert parameter_counts.count(name, 1000) == trained
    assert parameter_counts.gradient_bytes(name, 1000) == 4 * trained


@pytest.mark.parametrize("depth", names.RESNET_DEPTHS)
def test_the_stem_of_resnet_d_is_all_that_differs(depth):
    plain, other = (
        parameter_counts.parameters(f"resnet{depth}{ending}", 10)
        for ending in ("", "d")
    )
    # Three 3x3 kernels for one of 7x7, and two normalizations more.
    more = 9 * (3 * 32 + 32 * 32 + 32 * 64) - 7 * 7 * 3 * 64
    assert other.kernel_values - plain.kernel_values == more
    assert other.vector_values - plain.vector_values == 4 * 32
    assert other.num_variables - plain.num_variables == 6


def test_every_network_is_in_the_table():
    for name in names.MODELS:
        assert parameter_counts.count(name, 10) > 0
