"""Checkpoints: a folder for each saved step, which appears whole or not at all.

Its tensors are in TensorFlow's own format, which any TensorFlow tool reads: weights as
`model/NAME`, velocities as `velocity/NAME`, moving averages of the weights as
`ema/NAME`, those of batch normalization that each rank has for itself, and `step`.
`checkpoint_folders` has the rest.
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
from resnet import checkpoint_folders
from resnet.checkpoint_folders import DamagedCheckpoint

PREFIX = "state"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after a step.

    Attributes:
        step: Steps done.
        tensors: By name, without `step`.
        facts: What the run knew besides, as JSON has it.
    """

    step: int
    tensors: Mapping[str, np.ndarray | tf.Tensor]
    facts: Mapping[str, Any]


def save(model_dir: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint and removes the oldest; returns its folder.

    The best one so far and the ends of phases stay beside the newest. What can't be
    finished is removed.

    Args:
        model_dir: Folder of the run.
        checkpoint: What to save. Those of `checkpoint_folders.EVALUATIONS` that its
            facts have, have `top1`; `ends_phase` names the phase that it ends.
        keep: Newest checkpoints that are left, at least 1.

    Raises:
        OSError: If it can't be written.
        tf.errors.OpError: The same.
    """
    folder = checkpoint_folders.of_step(model_dir, checkpoint.step)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
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
        checkpoint_folders.write_contents(unfinished, checkpoint.facts)
        checkpoint_folders.put_in_place(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    try:
        _remove_old(model_dir, keep)
    except (OSError, UserError) as error:  # What was to be saved is.
        logging.warning("older checkpoints can't be removed: %s", error)
    return folder


def _remove_old(model_dir: Path, keep: int) -> None:
    kept = {checkpoint_folders.best_step(model_dir)}
    kept.update(checkpoint_folders.phase_ends(model_dir))
    for old in checkpoint_folders.saved_steps(model_dir)[:-keep]:
        if old not in kept:
            checkpoint_folders.remove(checkpoint_folders.of_step(model_dir, old))


def load(model_dir: Path, step: int) -> Checkpoint:
    """Returns the checkpoint of a step, each of its bytes checked.

    Raises:
        DamagedCheckpoint: If it is not as it was written.
        UserError: If there is none, it is of a later format, or can't be read now.
    """
    if step not in (there := checkpoint_folders.saved_steps(model_dir)):
        raise UserError(
            f"expected a checkpoint of step {step} in"
            f" {model_dir / checkpoint_folders.FOLDER}; there are:"
            f" {', '.join(map(str, there)) or 'none'}"
        )
    return _read(checkpoint_folders.of_step(model_dir, step))


def _read(folder: Path) -> Checkpoint:
    facts = checkpoint_folders.verify(folder)
    try:
        reader = tf.train.load_checkpoint(str(folder / PREFIX))
        names = reader.get_variable_to_shape_map()
        tensors = {name: reader.get_tensor(name) for name in sorted(names)}
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        # Its bytes are those that were written: nothing is known to be damaged.
        raise checkpoint_folders.unreadable_now(folder, str(error)) from error
    return Checkpoint(int(tensors.pop("step")), tensors, facts)


def load_from(folder: Path) -> Checkpoint:
    """Returns the checkpoint that a folder is, or the newest one of a run's folder.

    Raises:
        UserError: If there is none, or none that is whole.
    """
    if checkpoint_folders.is_checkpoint(folder):
        return _read(folder)
    newest = load_newest(folder)
    if newest is None:
        raise UserError(f"expected a checkpoint in {folder}; there is none")
    return newest


def load_newest(model_dir: Path, set_aside: bool = False) -> Checkpoint | None:
    """Returns the newest checkpoint that is whole; None if there is none at all.

    Warns of each one that is damaged, and of what can't be renamed.

    Args:
        model_dir: Folder of the run.
        set_aside: Whether to rename damaged ones to `damaged-step-...`, out of the way.

    Raises:
        UserError: If there are checkpoints, but all of them are damaged, or one can't
            be read now.
    """
    damaged: list[DamagedCheckpoint] = []
    for step in reversed(checkpoint_folders.saved_steps(model_dir)):
        try:
            whole = load(model_dir, step)
        except DamagedCheckpoint as error:
            damaged.append(error)
            logging.warning("%s. Looking for the one before it.", error)
            continue
        if set_aside:
            for one in damaged:
                _set_aside(one.folder)
        return whole
    if damaged:
        raise UserError(
            f"expected a whole checkpoint in {model_dir / checkpoint_folders.FOLDER};"
            f" there are {len(damaged)}, and none is. Restore one, or begin anew in"
            f" another --model_dir. The newest: {damaged[0]}"
        )
    return None


def _set_aside(folder: Path) -> None:
    try:
        logging.warning("%s is now %s.", folder, checkpoint_folders.set_aside(folder))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        logging.warning("%s can't be renamed (%s), and stays.", folder, reason)
