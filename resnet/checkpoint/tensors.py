"""Saves and loads checkpoints: a folder for each saved step, written atomically.

Rank 0 writes tensors in TensorFlow's own format, which any TensorFlow tool reads: those
that `TrainState.tensors` lists by name, the BatchNorm statistics of each rank, and
`step`. Larger state that differs from rank to rank (`TrainState.own_variables`) is
written by each rank into files of its own: together these are `num_ranks` times as
large as the model.
"""

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from absl import logging

from resnet.base.errors import UserError
from resnet.checkpoint import integrity, retention, step_dirs
from resnet.checkpoint.integrity import CorruptCheckpoint, Fingerprint
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.distributed.communicator import BackgroundCommunicator, Communicator

_NUM_LISTS = 20  # Attempts to load the newest checkpoint before it is replaced.
ALONE = BackgroundCommunicator()
# Each rank normalizes by its own batches, so its moving averages are its own as well.
RANK_BATCH_NORM = "batch_norm_averages_of_ranks"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint, or the part of them that one rank saves.

    Tensors (without `step`) and metadata, which are JSON values, are saved by rank 0
    only. The `rank_tensors` are this rank's own state.
    """

    step: int
    tensors: Mapping[str, np.ndarray | tf.Tensor]
    metadata: Mapping[str, Any]
    rank_tensors: Mapping[str, np.ndarray | tf.Tensor] = field(default_factory=dict)


class _Replaced(Exception):
    """A checkpoint was removed or replaced while it was being read."""


class OtherRankFailed(RuntimeError):
    """A save failed because another rank can't write its part of the checkpoint."""


def save(
    model_dir: Path,
    checkpoint: Checkpoint,
    keep: int,
    ranks: BackgroundCommunicator = ALONE,
) -> Path:
    """Writes a checkpoint and removes the oldest; returns its folder.

    A save that fails leaves nothing behind. If ranks have state of their own, all of
    them call this with the same step, and a save that fails on one rank fails on all.
    Each entry of the metadata that `retention.EVALUATIONS` names has a `top1`; the
    entry `ends_phase`, if there is one, names the phase that ends with the step. Raises
    OSError or tf.errors.OpError if the folder can't be written, OtherRankFailed if
    another rank can't write its part.
    """
    folder = of_step(model_dir, checkpoint.step)
    unfinished = step_dirs.unfinished(folder)
    is_first = ranks.rank == 0

    def prepare() -> None:
        if is_first:
            shutil.rmtree(unfinished, ignore_errors=True)
            # Without parents: it fails if the folder of the run was moved away.
            folder.parent.mkdir(exist_ok=True)
            unfinished.mkdir()

    def write() -> dict[str, Fingerprint]:
        files = []
        if is_first:
            named = {**checkpoint.tensors, "step": np.int64(checkpoint.step)}
            files += _write_tensors(unfinished / step_dirs.STATE, named)
        if checkpoint.rank_tensors:
            prefix = step_dirs.rank_prefix(ranks.rank, ranks.num_ranks)
            files += _write_tensors(unfinished / prefix, checkpoint.rank_tensors)
        return integrity.fingerprints(files)

    def commit() -> None:
        if is_first:
            files = {name: part[name] for part in written for name in part}
            for name in files:
                (unfinished / name).stat()  # Fails if another rank's file isn't here.
            metadata = {**checkpoint.metadata, integrity.STEP: checkpoint.step}
            integrity.write_contents(unfinished, metadata, files)
            step_dirs.put_in_place(unfinished, folder)

    try:
        _on_all_ranks(ranks, prepare)
        written = _on_all_ranks(ranks, write)
        _on_all_ranks(ranks, commit)
    except BaseException:
        if is_first:  # No rank writes to this folder any more.
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    if is_first:
        try:
            retention.remove_old(model_dir, keep)
        except (OSError, UserError) as error:  # The new checkpoint is there.
            logging.warning("older checkpoints can't be removed: %s", error)
    return folder


def _on_all_ranks(ranks: BackgroundCommunicator, action: Callable[[], _T]) -> list[_T]:
    """Calls a function on all ranks; returns their results, or raises on all ranks."""
    result, failed = None, None
    try:
        result = action()
    except Exception as error:
        failed = error
    reason = None if failed is None else f"on {platform.node()}: {failed}"
    outcomes = ranks.allgather((result, reason))  # This also is the barrier.
    if failed is not None:
        raise failed
    for rank, (_, reason) in enumerate(outcomes):
        if reason is not None:
            raise OtherRankFailed(f"rank {rank} {reason}")
    return [result for result, _ in outcomes]


def _write_tensors(prefix: Path, tensors: Mapping[str, Any]) -> list[Path]:
    """Writes tensors in TensorFlow's format, durably; returns the files."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    files = list(prefix.parent.glob(f"{prefix.name}.*"))
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    return files


def load(model_dir: Path, step: int) -> Checkpoint:
    """Returns the checkpoint of a step, without the ranks' own state.

    All bytes that are returned are checked; of the rank files, only the existence and
    the sizes are checked. Raises CorruptCheckpoint if it is not as it was written, and
    UserError if there is none, it has another format, or can't be read now.
    """
    if step not in (saved := saved_steps(model_dir)):
        raise UserError(
            f"expected a checkpoint of step {step} in"
            f" {model_dir / step_dirs.FOLDER}; there are:"
            f" {', '.join(map(str, saved)) or 'none'}"
        )
    return _load_folder(of_step(model_dir, step))


def _load_folder(folder: Path) -> Checkpoint:
    metadata = integrity.verify(folder, lambda name: step_dirs.rank_of(name) is None)
    tensors = _read_tensors(folder, step_dirs.STATE)
    return Checkpoint(int(tensors.pop("step")), tensors, metadata)


def load_rank(folder: Path, rank: int, num_ranks: int) -> dict[str, np.ndarray]:
    """Returns a rank's own state in a checkpoint, by name, or raises UserError.

    It is empty if the checkpoint has none of so many ranks.
    """
    prefix = step_dirs.rank_prefix(rank, num_ranks)
    if f"{prefix}.index" not in integrity.read_contents(folder)["files"]:
        return {}
    return _read_tensors(folder, prefix)


def _read_tensors(folder: Path, prefix: str) -> dict[str, np.ndarray]:
    try:
        reader = tf.train.load_checkpoint(str(folder / prefix))
        names = reader.get_variable_to_shape_map()
        return {name: reader.get_tensor(name) for name in sorted(names)}
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        # The files are as they were written, so nothing is known to be corrupt.
        raise integrity.unreadable_now(folder, str(error)) from error


def load_from(folder: Path) -> Checkpoint:
    """Returns the checkpoint in a folder, or the newest one in that of a run."""
    if step_dirs.is_checkpoint(folder):
        return _load_folder(folder)
    newest = load_newest(folder)
    if newest is None:
        raise UserError(f"{folder} must contain a checkpoint; found none")
    return newest


def load_newest(model_dir: Path, quarantine: bool = False) -> Checkpoint | None:
    """Returns the newest checkpoint that is intact; None if there is none at all.

    Warns of each corrupt checkpoint; if asked for, it is renamed to `damaged-step-...`.
    Raises UserError if there are checkpoints, but all of them are corrupt, or one can't
    be read now.
    """

    def load_step(step: int) -> Checkpoint:
        before = step_dirs.version(of_step(model_dir, step))
        try:
            return load(model_dir, step)
        except UserError as error:
            now = step_dirs.version(of_step(model_dir, step))
            if now is None or now != before:
                raise _Replaced from error
            raise

    for _ in range(_NUM_LISTS):  # A training run may replace checkpoints meanwhile.
        with contextlib.suppress(_Replaced):
            return _newest_of(model_dir, saved_steps(model_dir), load_step, quarantine)
    raise UserError(
        f"the checkpoints in {model_dir / step_dirs.FOLDER} are replaced faster than"
        " they can be read. Read them when the training has ended, or train with a"
        " larger --keep_checkpoints or a longer --checkpoint_every."
    )


def load_newest_on_ranks(
    model_dir: Path, communicator: Communicator
) -> Checkpoint | None:
    """Does what `load_newest` does with quarantine, on all ranks.

    The ranks divide the checking of the rank files among themselves. Rank 0 gets the
    checkpoint, without the ranks' own state, the others None. Raises AgreedError, on
    all ranks, if no checkpoint is intact or one can't be read now.
    """
    steps: list[int] = []
    with communicator.collective_errors():
        if communicator.rank == 0:
            steps = saved_steps(model_dir)
    steps = communicator.broadcast(steps)

    def is_mine(name: str) -> bool:
        writer = step_dirs.rank_of(name)
        if writer is None:
            return False  # Rank 0 checks this file when it loads it.
        return writer % communicator.num_ranks == communicator.rank

    def load_on_ranks(step: int) -> Checkpoint | None:
        folder = of_step(model_dir, step)
        loaded, damage = None, None
        with communicator.collective_errors():
            try:
                if communicator.rank == 0:
                    loaded = load(model_dir, step)
                integrity.verify(folder, is_mine, checks_other_sizes=False)
            except CorruptCheckpoint as error:
                damage = error.reason
        if reasons := list(filter(None, communicator.allgather(damage))):
            raise CorruptCheckpoint(folder, reasons[0])
        return loaded

    with communicator.collective_errors():
        return _newest_of(model_dir, steps, load_on_ranks, communicator.rank == 0)


def _newest_of(
    model_dir: Path,
    steps: Sequence[int],
    load_step: Callable[[int], _T],
    quarantine: bool,
) -> _T | None:
    """Returns what `load_step` does for the newest step that isn't corrupt, if any."""
    corrupt: list[CorruptCheckpoint] = []
    for step in reversed(steps):
        try:
            intact = load_step(step)
        except CorruptCheckpoint as error:
            corrupt.append(error)
            logging.warning("%s. Falling back to the checkpoint before it.", error)
            continue
        if quarantine:
            for damage in corrupt:
                _quarantine(damage.folder)
        return intact
    if corrupt:
        raise UserError(
            f"all {len(corrupt)} checkpoints in"
            f" {model_dir / step_dirs.FOLDER} are corrupt. Restore one from a"
            f" backup, or start over in another --model_dir. The newest: {corrupt[0]}"
        )
    return None


def _quarantine(folder: Path) -> None:
    try:
        renamed = step_dirs.quarantine(folder)
        logging.warning("%s is renamed to %s.", folder, renamed.name)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        logging.warning("%s can't be renamed (%s) and stays.", folder, reason)


def assign(
    variables: Mapping[str, tf.Variable], saved: Mapping[str, np.ndarray], problem: str
) -> None:
    """Assigns the tensors of a checkpoint to variables, all or none.

    Raises UserError if names or shapes differ; the problem is the first part of the
    sentence.
    """
    expected = {name: tuple(variable.shape) for name, variable in variables.items()}
    shapes = {name: tuple(array.shape) for name, array in saved.items()}
    if different := sorted(set(expected.items()) ^ set(shapes.items())):
        name = different[0][0]
        raise UserError(
            f"{problem}: {name!r} must have the shape {expected.get(name)}; the"
            f" checkpoint's is {shapes.get(name)}"
        )
    for name, variable in variables.items():
        variable.assign(saved[name])


def mean_of_weights(saved: Iterable[Checkpoint]) -> Checkpoint:
    """Returns the last checkpoint with the mean of all checkpoints' network variables.

    The mean is taken of the weights, BatchNorm's moving averages and, if there is one,
    the EMA of both. The moving averages of the mean network would be others than the
    mean of moving averages: recompute them (PreciseBN). One checkpoint, of at least
    one, is in memory at a time; sums are float64.

    Source: Izmailov et al. 2018, arXiv:1803.05407 (stochastic weight averaging).
    """
    sums: dict[str, np.ndarray] = {}
    count = 0
    for checkpoint in saved:
        count += 1
        for name, value in checkpoint.tensors.items():
            if name.startswith(("model/", "ema/")):
                sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64)
    means = {name: (total / count).astype(np.float32) for name, total in sums.items()}
    tensors = {**checkpoint.tensors, **means}
    tensors.pop(RANK_BATCH_NORM, None)
    return Checkpoint(checkpoint.step, tensors, checkpoint.metadata)
