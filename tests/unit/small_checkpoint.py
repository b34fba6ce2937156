"""A small checkpoint for tests, and a function that saves it."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from resnet.checkpoint import tensors as checkpoints
from resnet.checkpoint.tensors import Checkpoint

SMALL = {"weights": np.arange(1000, dtype=np.float32)}


def save(
    model_dir: pathlib.Path,
    step: int,
    tensors: Mapping[str, Any] = SMALL,
    keep: int = 9,
    **metadata: Any,
) -> pathlib.Path:
    """Saves tensors as a checkpoint of a step; returns its folder."""
    return checkpoints.save(model_dir, Checkpoint(step, tensors, metadata), keep)
