"""Chooses the checkpoints of a run to evaluate. Does not import TensorFlow."""

from collections.abc import Sequence
from pathlib import Path

from resnet.base.errors import UserError
from resnet.checkpoint import retention, step_dirs
from resnet.config.config import Config, load_config
from resnet.runtime import run_lock

NAMES = ("latest", "best", "all", "phases")

Requested = str | list[int]


def parse(value: str) -> Requested:
    """Returns the value of --checkpoints: one of `NAMES`, or a sorted list of steps."""
    if value in NAMES:
        return value
    try:
        return sorted({int(step) for step in value.split(",")})
    except ValueError as error:
        raise UserError(
            f"--checkpoints must be {', '.join(NAMES)}, or steps such as 100,200; got"
            f" {value!r}."
        ) from error


def choose(requested: Requested, model_dir: Path) -> list[int]:
    """Returns the steps of the checkpoints that `parse` returned, in ascending order.

    Raises UserError if the run has no checkpoint, or lacks a requested one.
    """
    saved = step_dirs.saved_steps(model_dir)
    if not saved:
        advice = "Start training first."
        if job := run_lock.holder(model_dir):
            every = load_config(str(model_dir)).checkpoint_every
            advice = (
                f"The training that runs there ({job}) saves one every {every} and at"
                " the end of each phase: rerun this command then."
            )
        raise UserError(f"no checkpoint has been saved in {model_dir} yet. {advice}")
    if requested in ("latest", "all"):
        return saved[-1:] if requested == "latest" else saved
    has = f"it has those of steps {', '.join(map(str, saved))}."
    if requested in ("best", "phases"):
        checkpoints = retention.list_saved(model_dir)
        steps = sorted(retention.phase_ends(checkpoints))
        problem = f"no saved checkpoint in {model_dir} ends a phase of the recipe"
        if requested == "best":
            best = retention.best_step(checkpoints)
            steps = [] if best is None else [best]
            problem = f"training has evaluated no saved checkpoint in {model_dir}"
        if not steps:
            raise UserError(f"{problem}. Pass steps to --checkpoints; {has}")
        return steps
    steps = [int(step) for step in requested]
    if missing := sorted(set(steps) - set(saved)):
        raise UserError(
            f"no checkpoint of step {missing[0]} is saved in {model_dir}; {has}"
        )
    return steps


def check_combination(combine: str, checkpoints: str, steps: Sequence[int]) -> None:
    """Refuses to combine a single checkpoint, with a UserError."""
    if combine != "none" and len(steps) < 2:
        raise UserError(
            f"--combine={combine} needs at least two checkpoints;"
            f" --checkpoints={checkpoints} is only that of step {steps[0]}. Name more,"
            " for example with --checkpoints=all."
        )


def weights_to_evaluate(
    requested: str | None, config: Config, model_dir: str | Path
) -> list[str]:
    """Returns the names of the weights to evaluate, by --weights (None: all)."""
    if config.ema_decay:
        return [requested] if requested in ("raw", "ema") else ["raw", "ema"]
    if requested in ("ema", "both"):
        raise UserError(
            f"--weights={requested} needs a run with EMA weights (--ema_decay); the run"
            f" in {model_dir} has none."
        )
    return ["raw"]


def require(
    step: int | None, weights: str | None, config: Config, model_dir: Path
) -> None:
    """Refuses a checkpoint (None: the newest) or weights that a run doesn't have."""
    choose("latest" if step is None else [step], model_dir)
    weights_to_evaluate(weights, config, model_dir)
