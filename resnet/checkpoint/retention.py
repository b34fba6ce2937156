"""Finds the checkpoints of a run to keep, and removes the others. Needs no TensorFlow.

The metadata of the checkpoints say which one is the best, which ones end a phase of the
recipe, and which one ends the run.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resnet.checkpoint import integrity, rank_names, step_dirs
from resnet.checkpoint.integrity import CorruptCheckpoint, OtherStep, read_metadata
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.config.config import Config, config_from_json

# The keys in the metadata of the results of evaluating the weights and their EMA.
EVALUATIONS = ("eval", "eval_ema")


def best_top1(metadata: Mapping[str, Any]) -> float | None:
    """Returns the highest top-1 of a checkpoint; None if it was not evaluated."""
    accuracies = [metadata[name]["top1"] for name in EVALUATIONS if name in metadata]
    return max(accuracies, default=None)


def best_step(model_dir: Path) -> int | None:
    """Returns the saved step with the highest top-1, the newest among equal ones.

    It is None if no checkpoint was evaluated.
    """
    evaluated = [
        (top1, step)
        for step, metadata in _metadata_of_all(model_dir)
        if (top1 := best_top1(metadata)) is not None
    ]
    return max(evaluated)[1] if evaluated else None


def phase_ends(model_dir: Path) -> dict[int, str]:
    """Returns the saved steps that end a phase of the recipe, and the phases' names."""
    return {
        step: metadata["ends_phase"]
        for step, metadata in _metadata_of_all(model_dir)
        if metadata.get("ends_phase")
    }


def ends_run(
    model_dir: Path, step: int, train_steps: int, stop_at_top1: float | None = None
) -> bool:
    """Returns whether a run ends with a step's checkpoint, which may be corrupt.

    Args:
        model_dir: Folder of the run.
        step: A step that has a checkpoint.
        train_steps: The run's last step.
        stop_at_top1: Top-1 at which the run stops, from 0 to 1, or 0 for none; None
            takes the setting with which the checkpoint was saved.
    """
    try:
        metadata = read_metadata(of_step(model_dir, step))
    except OtherStep:
        return False
    except CorruptCheckpoint:
        return step >= train_steps
    if step >= train_steps:
        return True
    if stop_at_top1 is None:
        stop_at_top1 = metadata.get("config", {}).get("stop_at_top1", 0.0)
    return 0 < stop_at_top1 <= (best_top1(metadata) or 0.0)


def newest_settings(model_dir: Path) -> Config | None:
    """Returns the settings with which the newest intact checkpoint was saved.

    They are None if no checkpoint is intact.
    """
    for _, metadata in reversed(list(_metadata_of_all(model_dir))):
        if "config" in metadata:
            return config_from_json(metadata["config"])
    return None


def remove_old(model_dir: Path, keep: int) -> None:
    """Removes all but the newest checkpoints, the best one and the ends of phases.

    Only the newest one keeps the ranks' own state, which takes as much space as the
    model for each rank.

    Args:
        model_dir: Folder of the run.
        keep: Number of the newest checkpoints that are kept, at least 1.

    Raises:
        OSError: If a checkpoint can't be removed.
        UserError: If the checkpoints can't be read now.
    """
    kept = {best_step(model_dir), *phase_ends(model_dir)}
    steps = [step for step in saved_steps(model_dir) if _has_step(model_dir, step)]
    for old in steps[:-keep]:
        if old not in kept:
            step_dirs.remove(of_step(model_dir, old))
    for old in steps[:-1]:
        with contextlib.suppress(CorruptCheckpoint):
            if (folder := of_step(model_dir, old)).exists():
                integrity.drop_files(
                    folder, lambda name: rank_names.owner(name) is not None
                )


def _has_step(model_dir: Path, step: int) -> bool:
    """Returns whether a step's folder holds that step; True if it is corrupt."""
    try:
        read_metadata(of_step(model_dir, step))
    except OtherStep:
        return False
    except CorruptCheckpoint:
        pass
    return True


def _metadata_of_all(model_dir: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields step and metadata of each checkpoint whose `checkpoint.json` is intact."""
    for step in saved_steps(model_dir):
        with contextlib.suppress(CorruptCheckpoint):
            yield step, read_metadata(of_step(model_dir, step))
