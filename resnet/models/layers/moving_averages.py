"""The moving averages of batch normalization, and who updates them.

average = m * average + (1 - m) * batch statistic

A layer updates its own, unless the statistics are collected: in asynchronous training
the averages are on parameter servers.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import keras
import tensorflow as tf


class Statistic(NamedTuple):
    """A statistic of one batch.

    Attributes:
        average: The variable that averages it, `[channels]` float32.
        value: The statistic of the batch, `[channels]` float32.
        step_size: 1 - m, the weight of the batch.
    """

    average: keras.Variable
    value: tf.Tensor
    step_size: float


_collected = threading.local()


@contextlib.contextmanager
def collected() -> Iterator[list[Statistic]]:
    """Collects the statistics of the block instead of updating the averages."""
    statistics: list[Statistic] = []
    _collected.statistics = statistics
    try:
        yield statistics
    finally:
        _collected.statistics = None


def update(average: keras.Variable, value: tf.Tensor, momentum: float) -> None:
    """Moves an average towards the statistic of a batch, or notes the statistic.

    Args:
        average: The variable, `[channels]` float32.
        value: The statistic of the batch, of the same shape and dtype.
        momentum: The m of the formula above, in [0, 1).
    """
    statistics = getattr(_collected, "statistics", None)
    if statistics is not None:
        statistics.append(Statistic(average, value, 1 - momentum))
        return
    variable = average.value
    variable.assign_sub((variable - value) * (1 - momentum))
