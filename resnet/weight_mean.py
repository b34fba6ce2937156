"""The mean of the weights of several checkpoints, as a checkpoint.

Source: Izmailov et al. 2018, arXiv:1803.05407 (stochastic weight averaging).
"""

from collections.abc import Iterable

import numpy as np

from resnet.checkpoints import Checkpoint
from resnet.train_state import AVERAGES_OF_RANKS


def mean_of_weights(saved: Iterable[Checkpoint]) -> Checkpoint:
    """Returns the last checkpoint, its network's variables replaced by all ones' mean.

    That is of the weights, of the moving averages of batch normalization (which those
    of the mean network are not: recalibrate them), and of the moving averages of all of
    these, if there are any. One checkpoint is in memory at a time, and the sums in
    float64.

    Args:
        saved: At least one, of the same network.
    """
    sums: dict[str, np.ndarray] = {}
    count = 0
    for one in saved:
        count += 1
        for name, value in one.tensors.items():
            if name.startswith(("model/", "ema/")):
                sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64)
    means = {name: (total / count).astype(np.float32) for name, total in sums.items()}
    rest = {
        name: value for name, value in one.tensors.items() if name != AVERAGES_OF_RANKS
    }
    return Checkpoint(one.step, {**rest, **means}, one.facts)
