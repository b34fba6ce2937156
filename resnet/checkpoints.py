"""Checkpoints: a folder for each saved step, which appears whole or not at all.

`model_dir/checkpoints/step-00004680/` holds a checkpoint in TensorFlow's own format,
named `state`, that any TensorFlow tool reads: weights as `model/NAME`, velocities as
`velocity/NAME`, and `step`.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep.atomic_files import sync_folder
from data_prep.errors import UserError

FOLDER = "checkpoints"
PREFIX = "state"
_STEP_FOLDER = re.compile(r"step-(\d{8,})")


def saved_steps(model_dir: Path) -> list[int]:
    """Returns the steps that have a checkpoint, the oldest first."""
    folder = model_dir / FOLDER
    if not folder.is_dir():
        return []
    matches = (_STEP_FOLDER.fullmatch(entry.name) for entry in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def save(
    model_dir: Path, step: int, tensors: Mapping[str, tf.Tensor], keep: int
) -> Path:
    """Writes the checkpoint of a step and removes the oldest; returns its folder.

    Args:
        model_dir: Folder of the run.
        step: Steps done.
        tensors: What to save, by name.
        keep: Checkpoints that are left, at least 1.
    """
    folder = _folder(model_dir, step)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    named = {**tensors, "step": tf.constant(step, tf.int64)}
    tf.raw_ops.SaveV2(
        prefix=str(unfinished / PREFIX),
        tensor_names=list(named),
        shape_and_slices=[""] * len(named),
        tensors=list(named.values()),
    )
    for file in unfinished.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_folder(unfinished)
    if folder.exists():  # Saved before, by a run that went on from an older one.
        _remove(folder)
    unfinished.rename(folder)
    sync_folder(folder.parent)
    for old in saved_steps(model_dir)[:-keep]:
        _remove(_folder(model_dir, old))
    return folder


def load(model_dir: Path, step: int) -> dict[str, np.ndarray]:
    """Returns what the checkpoint of a step holds, by name, `step` included.

    Raises:
        UserError: If there is none, or it can't be read.
    """
    prefix = _folder(model_dir, step) / PREFIX
    if step not in saved_steps(model_dir):
        there = ", ".join(map(str, saved_steps(model_dir))) or "none"
        raise UserError(
            f"expected a checkpoint of step {step} in {model_dir / FOLDER}; there are:"
            f" {there}"
        )
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {
            name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
        }
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(f"the checkpoint {prefix} can't be read: {error}") from error


def _remove(folder: Path) -> None:
    """Removes a checkpoint: first its name, so that nobody takes half of it."""
    removed = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _folder(model_dir: Path, step: int) -> Path:
    return model_dir / FOLDER / f"step-{step:08d}"
