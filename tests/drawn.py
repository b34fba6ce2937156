"""Random numbers of tests, and the order of examples as a formula of positions."""

import functools
from typing import Any

import numpy as np

from resnet.data.example_order import NUMPY, round_keys, sides


@functools.lru_cache(maxsize=50)
def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns the same array for the same arguments; to draw it takes longest."""
    drawn = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    drawn.flags.writeable = False
    return drawn


def shuffled(
    position_in_epoch: np.ndarray, seed: int, epoch: Any, num_examples: int
) -> np.ndarray:
    """Returns the examples at these positions of these epochs.

    The positions are int64 in [0, num_examples), of any shape; the epoch has the same
    shape or is a scalar. `num_examples` is from 1 to 2**62.
    """
    keys = round_keys(seed, np.asarray(epoch, np.int64))
    return NUMPY.walk(position_in_epoch, keys, sides(num_examples), num_examples)
