"""Checkpoints: a folder for each saved step, which appears whole or not at all.

Its tensors are in TensorFlow's own format, which any TensorFlow tool reads: variables
of the network as `model/NAME`, momentum buffers as `velocity/NAME`, moving averages of
the variables as `ema/NAME`, the BatchNorm statistics of each rank, and `step`.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from data_prep.errors import UserError
from resnet import checkpoint_folders, checkpoint_integrity, checkpoint_retention
from resnet.checkpoint_folders import of_step, saved_steps
from resnet.checkpoint_integrity import DamagedCheckpoint

PREFIX = "state"
# Each rank normalizes by its own batches, so its moving averages are its own as well.
RANK_BATCH_NORM = "batch_norm_averages_of_ranks"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after a step.

    Attributes:
        step: Number of steps done.
        tensors: Tensors by name, without `step`.
        metadata: JSON values that describe the run at this step.
    """

    step: int
    tensors: Mapping[str, np.ndarray | tf.Tensor]
    metadata: Mapping[str, Any]


def save(model_dir: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint and removes the oldest; returns its folder.

    The best one so far and the ends of phases are kept beside the newest. A save that
    fails leaves nothing behind.

    Args:
        model_dir: Folder of the run.
        checkpoint: What to save. Those of `checkpoint_retention.EVALUATIONS` that its
            metadata has, have `top1`; `ends_phase` names the phase that it ends.
        keep: Number of the newest checkpoints that are kept, at least 1.

    Raises:
        OSError: If the checkpoint can't be written.
        tf.errors.OpError: The same.
    """
    folder = of_step(model_dir, checkpoint.step)
    unfinished = checkpoint_folders.unfinished(folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    named = {**checkpoint.tensors, "step": np.int64(checkpoint.step)}
    try:
        tf.raw_ops.SaveV2(
            prefix=str(unfinished / PREFIX),
            tensor_names=list(named),
            shape_and_slices=[""] * len(named),
            tensors=list(named.values()),
        )
        for file in unfinished.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        checkpoint_integrity.write_contents(unfinished, checkpoint.metadata)
        checkpoint_folders.put_in_place(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    try:
        checkpoint_retention.remove_old(model_dir, keep)
    except (OSError, UserError) as error:  # The new checkpoint is saved nonetheless.
        logging.warning("older checkpoints can't be removed: %s", error)
    return folder


def load(model_dir: Path, step: int) -> Checkpoint:
    """Returns the checkpoint of a step, after checking each of its bytes.

    Raises:
        DamagedCheckpoint: If it is not as it was written.
        UserError: If there is none, it has a later format, or can't be read now.
    """
    if step not in (saved := saved_steps(model_dir)):
        raise UserError(
            f"expected a checkpoint of step {step} in"
            f" {model_dir / checkpoint_folders.FOLDER}; there are:"
            f" {', '.join(map(str, saved)) or 'none'}"
        )
    return _read(of_step(model_dir, step))


def _read(folder: Path) -> Checkpoint:
    metadata = checkpoint_integrity.verify(folder)
    try:
        reader = tf.train.load_checkpoint(str(folder / PREFIX))
        names = reader.get_variable_to_shape_map()
        tensors = {name: reader.get_tensor(name) for name in sorted(names)}
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        # Its bytes are those that were written: nothing is known to be damaged.
        raise checkpoint_integrity.unreadable_now(folder, str(error)) from error
    return Checkpoint(int(tensors.pop("step")), tensors, metadata)


def load_from(folder: Path) -> Checkpoint:
    """Returns the checkpoint that a folder is, or the newest one of a run's folder.

    Raises:
        UserError: If there is none, or none that is intact.
    """
    if checkpoint_folders.is_checkpoint(folder):
        return _read(folder)
    newest = load_newest(folder)
    if newest is None:
        raise UserError(f"expected a checkpoint in {folder}; there is none")
    return newest


def load_newest(model_dir: Path, quarantine: bool = False) -> Checkpoint | None:
    """Returns the newest checkpoint that is intact; None if there is none at all.

    Warns of each damaged checkpoint, and of each that can't be renamed.

    Args:
        model_dir: Folder of the run.
        quarantine: Whether to rename damaged checkpoints to `damaged-step-...`.

    Raises:
        UserError: If there are checkpoints, but all of them are damaged, or one can't
            be read now.
    """
    damaged: list[DamagedCheckpoint] = []
    for step in reversed(saved_steps(model_dir)):
        try:
            intact = load(model_dir, step)
        except DamagedCheckpoint as error:
            damaged.append(error)
            logging.warning("%s. Falling back to the checkpoint before it.", error)
            continue
        if quarantine:
            for error in damaged:
                _quarantine(error.folder)
        return intact
    if damaged:
        raise UserError(
            f"all {len(damaged)} checkpoints in"
            f" {model_dir / checkpoint_folders.FOLDER} are damaged. Restore one from a"
            f" backup, or start over in another --model_dir. The newest: {damaged[0]}"
        )
    return None


def _quarantine(folder: Path) -> None:
    try:
        renamed = checkpoint_folders.quarantine(folder)
        logging.warning("%s is renamed to %s.", folder, renamed.name)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        logging.warning("%s can't be renamed (%s) and stays.", folder, reason)
