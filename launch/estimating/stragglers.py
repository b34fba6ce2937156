"""How long the slowest of several nodes takes, whose steps vary at random."""

import functools
from statistics import NormalDist

_NORMAL = NormalDist()
_LIMIT = 9.0  # Standard deviations beyond which nothing is counted.
_INTERVALS = 2000


@functools.cache
def expected_maximum(num_nodes: int) -> float:
    """Returns the mean of the largest of N numbers, in standard deviations.

    The numbers are independent and normally distributed with mean 0. The mean is the
    integral of 1 - F(x)^N over x > 0 minus that of F(x)^N over x < 0, by the trapezoid
    rule, where F is the normal distribution function.

    Args:
        num_nodes: The number N, at least 1, for which it is 0.

    Source: David and Nagaraja 2003, "Order Statistics", 3rd edition, section 3.1, by
    partial integration of the mean.
    """
    if num_nodes == 1:
        return 0.0  # Without the integral's rounding.
    width = _LIMIT / _INTERVALS
    total = 0.0
    for index in range(_INTERVALS + 1):
        x = index * width
        value = 1 - _NORMAL.cdf(x) ** num_nodes - _NORMAL.cdf(-x) ** num_nodes
        total += value / 2 if index in (0, _INTERVALS) else value
    return total * width


def noise_of_range(lowest: float, highest: float, mean: float, number: int) -> float:
    """Returns the standard deviation, as a fraction of the mean, of numbers by range.

    The mean range of n normally distributed numbers is twice their expected maximum.

    Args:
        lowest: The lowest of the numbers.
        highest: The highest of them.
        mean: Their mean.
        number: How many they are, at least 2.

    Source: David and Nagaraja 2003, section 3.1.
    """
    return (highest - lowest) / mean / (2 * expected_maximum(number))
