"""Which checkpoints of a run are evaluated. Needs no TensorFlow."""

from pathlib import Path

from data_prep.errors import UserError
from resnet.checkpoint import retention, step_dirs

NAMES = ("latest", "best", "all", "phases")

Requested = str | list[int]


def parse(value: str) -> Requested:
    """Returns one of `NAMES`, or the steps that --checkpoints names.

    Raises:
        UserError: If it is none of these.
    """
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
    """Returns the steps to evaluate, the earliest first.

    Args:
        requested: What `parse` returns.
        model_dir: Folder of the run.

    Raises:
        UserError: If there is no checkpoint, or not one that was asked for.
    """
    saved = step_dirs.saved_steps(model_dir)
    if not saved:
        raise UserError(f"expected a checkpoint in {model_dir}; there is none yet")
    if requested == "latest":
        return saved[-1:]
    if requested == "all":
        return saved
    if requested == "phases":
        ends = sorted(retention.phase_ends(model_dir))
        if not ends:
            raise UserError(
                f"expected a checkpoint in {model_dir} that ends a phase of the recipe;"
                " there is none yet. Name a step."
            )
        return ends
    if requested == "best":
        best = retention.best_step(model_dir)
        if best is None:
            raise UserError(
                f"expected a checkpoint in {model_dir} that training evaluated; none"
                " of them was. Name a step."
            )
        return [best]
    steps = [int(step) for step in requested]
    if missing := sorted(set(steps) - set(saved)):
        raise UserError(
            f"expected a checkpoint of step {missing[0]} in {model_dir}; there are"
            f" those of {', '.join(map(str, saved))}"
        )
    return steps
