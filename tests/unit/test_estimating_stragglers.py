"""The mean of the largest of several normally distributed numbers."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.estimating import stragglers


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 3 / (2 * math.sqrt(math.pi))),
        # Harter 1961, Biometrika 48, table 1.
        (10, 1.53875),
        (100, 2.50759),
    ],
)
def test_known_means_of_the_largest(number, expected):
    assert stragglers.expected_maximum(number) == pytest.approx(expected, abs=1e-5)


@given(number=st.integers(1, 4095))
def test_more_nodes_wait_longer(number):
    more = stragglers.expected_maximum(number + 1)
    assert stragglers.expected_maximum(number) < more < math.sqrt(2 * math.log(4096))


def test_the_noise_is_found_from_the_range():
    draw = random.Random(0).gauss
    found = []
    for _ in range(500):
        steps = [draw(2.0, 0.06) for _ in range(10)]
        found.append(stragglers.noise_of_range(min(steps), max(steps), 2.0, 10))
    # The range of 10 numbers has a standard deviation of 0.26 of its mean: the mean of
    # 500 has one of 1.2 %.
    assert statistics.mean(found) == pytest.approx(0.03, rel=0.05)
