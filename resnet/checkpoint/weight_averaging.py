"""The mean of the weights of several checkpoints, as a checkpoint.

Source: Izmailov et al. 2018, arXiv:1803.05407 (stochastic weight averaging).
"""

from collections.abc import Iterable

import numpy as np

from resnet.checkpoint.tensors import RANK_BATCH_NORM, Checkpoint


def mean_of_weights(saved: Iterable[Checkpoint]) -> Checkpoint:
    """Returns the last checkpoint with the mean of all checkpoints' network variables.

    The mean is taken of the weights, BatchNorm's moving averages and, if there is one,
    the EMA of both. The moving averages of the mean network would be others than the
    mean of moving averages: recompute them (PreciseBN). One checkpoint is in memory at
    a time; sums are float64.

    Args:
        saved: Checkpoints of the same network, at least one.
    """
    sums: dict[str, np.ndarray] = {}
    count = 0
    for checkpoint in saved:
        count += 1
        for name, value in checkpoint.tensors.items():
            if name.startswith(("model/", "ema/")):
                sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64)
    means = {name: (total / count).astype(np.float32) for name, total in sums.items()}
    rest = {
        name: value
        for name, value in checkpoint.tensors.items()
        if name != RANK_BATCH_NORM
    }
    return Checkpoint(checkpoint.step, {**rest, **means}, checkpoint.metadata)
