"""Which checkpoints of a run are special, and which are kept. Needs no TensorFlow.

The best one, those that end a phase of the recipe and the one that ends the run are
found by the metadata of the checkpoints.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resnet.checkpoint import step_dirs
from resnet.checkpoint.integrity import DamagedCheckpoint, OtherStep, read_metadata
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.config.config import Config, config_from_json

# Keys of the metadata: what evaluating the weights, and their EMA, has found.
EVALUATIONS = ("eval", "eval_ema")


def best_top1(metadata: Mapping[str, Any]) -> float | None:
    """Returns the highest top-1 of a checkpoint; None if it was not evaluated."""
    found = [metadata[name]["top1"] for name in EVALUATIONS if name in metadata]
    return max(found, default=None)


def best_step(model_dir: Path) -> int | None:
    """Returns the saved step with the highest top-1, of equal ones the newest.

    None if none of the checkpoints was evaluated.
    """
    found = [
        (top1, step)
        for step, metadata in _metadata_of_all(model_dir)
        if (top1 := best_top1(metadata)) is not None
    ]
    return max(found)[1] if found else None


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
    """Returns whether a run ends with a step's checkpoint, which may be damaged.

    Args:
        model_dir: Folder of the run.
        step: A step that has a checkpoint.
        train_steps: The run's last step.
        stop_at_top1: Top-1 at which the run stops, or 0 for none; None takes the
            setting of the run when it saved the step.
    """
    try:
        metadata = read_metadata(of_step(model_dir, step))
    except OtherStep:
        return False
    except DamagedCheckpoint:
        return step >= train_steps
    if step >= train_steps:
        return True
    if stop_at_top1 is None:
        stop_at_top1 = metadata.get("config", {}).get("stop_at_top1", 0.0)
    return 0 < stop_at_top1 <= (best_top1(metadata) or 0.0)


def newest_settings(model_dir: Path) -> Config | None:
    """Returns the settings with which the newest intact checkpoint was saved."""
    for _, metadata in reversed(list(_metadata_of_all(model_dir))):
        if "config" in metadata:
            return config_from_json(metadata["config"])
    return None


def remove_old(model_dir: Path, keep: int) -> None:
    """Removes all but the newest checkpoints, the best one and the ends of phases.

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


def _has_step(model_dir: Path, step: int) -> bool:
    """Returns whether a step's folder holds that step, as far as is known."""
    try:
        read_metadata(of_step(model_dir, step))
    except OtherStep:
        return False
    except DamagedCheckpoint:
        pass
    return True


def _metadata_of_all(model_dir: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields step and metadata of each checkpoint whose `checkpoint.json` is intact."""
    for step in saved_steps(model_dir):
        with contextlib.suppress(DamagedCheckpoint):
            yield step, read_metadata(of_step(model_dir, step))
