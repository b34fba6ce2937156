"""Which checkpoints of a run are kept, are best, end a phase of the recipe or the run.

Their metadata say so. Needs no TensorFlow.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from resnet.base import json_file
from resnet.checkpoint import integrity, step_dirs
from resnet.checkpoint.integrity import CorruptCheckpoint, OtherStep
from resnet.config.config import Config

# The keys in the metadata of the results of evaluating the weights and their EMA.
EVALUATIONS = ("eval", "eval_ema")
# The newest checkpoints that keep the ranks' own state: if the newest one is corrupt, a
# run still resumes bit for bit.
_NUM_WITH_RANK_FILES = 2


class Saved(NamedTuple):
    """A saved step, with its metadata; empty if `checkpoint.json` is corrupt."""

    step: int
    metadata: Mapping[str, Any]


def list_saved(model_dir: Path) -> list[Saved]:
    """Returns the saved steps of a run, the oldest first.

    Folders that hold another step than that of their names are left out. Raises
    UserError if the checkpoints can't be read now.
    """
    saved = []
    for step in step_dirs.saved_steps(model_dir):
        try:
            metadata = integrity.read_metadata(step_dirs.of_step(model_dir, step))
        except OtherStep:
            continue
        except CorruptCheckpoint:
            metadata = {}
        saved.append(Saved(step, metadata))
    return saved


def metric_of(metadata: Mapping[str, Any]) -> str:
    """Returns the metric by which a run with these metadata has its best checkpoint."""
    metric: str = metadata.get("config", {}).get("best_metric", Config.best_metric)
    return metric


def best_value(metadata: Mapping[str, Any], metric: str) -> float | None:
    """Returns the highest value of a metric; None if there was no evaluation."""
    values = [metadata[name][metric] for name in EVALUATIONS if name in metadata]
    return max(values, default=None)


def final_value(metadata: Mapping[str, Any], metric: str) -> float | None:
    """Returns the metric of the weights that programs take: EMA if the run has them."""
    values = [metadata[name][metric] for name in EVALUATIONS if name in metadata]
    return values[-1] if values else None


def best_step(saved: Sequence[Saved]) -> int | None:
    """Returns the best step, the newest among equal ones, if any was evaluated.

    The newest checkpoint says by which metric, since a run may change it.
    """
    intact = [metadata for _, metadata in saved if metadata]
    metric = metric_of(intact[-1] if intact else {})
    evaluated = [
        (value, step)
        for step, metadata in saved
        if (value := best_value(metadata, metric)) is not None
    ]
    return max(evaluated)[1] if evaluated else None


def phase_ends(saved: Sequence[Saved]) -> dict[int, str]:
    """Returns the steps that end a phase of the recipe, and the phases' names."""
    return {
        step: metadata["ends_phase"]
        for step, metadata in saved
        if metadata.get("ends_phase")
    }


def steps_to_remove(saved: Sequence[Saved], keep: int) -> list[int]:
    """Returns all but the newest steps, at least 1, the best, and ends of phases."""
    kept = {best_step(saved), *phase_ends(saved)}
    return [step for step, _ in saved[:-keep] if step not in kept]


def remove_old(model_dir: Path, keep: int) -> None:
    """Removes the checkpoints that `steps_to_remove` names.

    Only the newest ones keep the ranks' own state, which takes as much space as the
    model for each rank. Raises OSError if a checkpoint can't be removed, and UserError
    if the checkpoints can't be read now.
    """
    saved = list_saved(model_dir)
    removed = steps_to_remove(saved, keep)
    for step in removed:
        step_dirs.remove(step_dirs.of_step(model_dir, step))
    for step, _ in saved[:-_NUM_WITH_RANK_FILES]:
        if step not in removed:
            with contextlib.suppress(CorruptCheckpoint):
                integrity.drop_rank_files(step_dirs.of_step(model_dir, step))


def ends_run(
    model_dir: Path, step: int, train_steps: int, config: Config | None = None
) -> bool:
    """Returns whether a run ends with a step's checkpoint, which may be corrupt.

    The settings say at which value of which metric it stops; None takes those with
    which the checkpoint was saved.
    """
    try:
        metadata = integrity.read_metadata(step_dirs.of_step(model_dir, step))
    except OtherStep:
        return False
    except CorruptCheckpoint:
        return step >= train_steps
    if step >= train_steps:
        return True
    stop_at: float = metadata.get("config", {}).get("stop_at", 0.0)
    metric = metric_of(metadata)
    if config is not None:
        stop_at, metric = config.stop_at, config.best_metric
    return 0 < stop_at <= (best_value(metadata, metric) or 0.0)


def newest_settings(model_dir: Path) -> Config | None:
    """Returns the settings with which the newest intact checkpoint was saved."""
    for _, metadata in reversed(list_saved(model_dir)):
        if "config" in metadata:
            return json_file.instance(Config, metadata["config"], "the settings")
    return None
