"""Reads how fast a node is from the output of `eval/benchmark.py --json`."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.estimating import stragglers
from resnet.base.errors import UserError

_NUMBERS = ("images_per_second", "min", "max", "batch_size", "ranks", "steps")
_KEYS = (*_NUMBERS, "image_size", "model", "infer")


@dataclass(frozen=True)
class NodeSpeed:
    """How fast a node trains by itself.

    Attributes:
        images_per_second: The rate of all its ranks, without the fixed seconds.
        fixed_seconds: The seconds of a step that don't depend on its images.
        ranks: The number of ranks on the node.
        image_size: The side of the images in pixels.
        step_noise: The standard deviation of a step as a fraction of it; None if it
            wasn't measured.
    """

    images_per_second: float
    fixed_seconds: float
    ranks: int
    image_size: int
    step_noise: float | None


def read(paths: Sequence[str], model: str) -> NodeSpeed:
    """Returns the speed that benchmarks of one node have measured.

    Several files, with other batch sizes, also tell the seconds that don't depend on
    the batch: a line is fitted to the seconds of a step over its images.

    Args:
        paths: The files: all that the benchmark printed, or its last line.
        model: The network to train.

    Raises:
        UserError: If a file isn't a benchmark's, or is of another network, or the files
            differ in their ranks or image sizes.
    """
    found = [_read(path) for path in paths]
    for path, values in zip(paths, found, strict=True):
        if values["model"] != model:
            raise UserError(
                f"--benchmark must be of the recipe's network, {model}; {path} is of"
                f" {values['model']}. Measure again with --model={model}."
            )
        for name in ("ranks", "image_size"):
            if values[name] != found[0][name]:
                raise UserError(
                    f"the files of --benchmark must have the same {name}; got"
                    f" {found[0][name]} in {paths[0]} and {values[name]} in {path}."
                )
    images = [values["batch_size"] * values["ranks"] for values in found]
    seconds = [
        count / values["images_per_second"]
        for count, values in zip(images, found, strict=True)
    ]
    rate, fixed = _line(images, seconds)
    noises = [_noise(values) for values in found if values["steps"] > 1]
    return NodeSpeed(
        images_per_second=rate,
        fixed_seconds=fixed,
        ranks=found[0]["ranks"],
        image_size=found[0]["image_size"],
        step_noise=statistics.median(noises) if noises else None,
    )


def _line(images: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Returns the images per second and the seconds at 0 images of the nearest line.

    The line goes through 0 if there is one point only, or if its seconds at 0 images
    would be negative.
    """
    if len(set(images)) > 1:
        slope, fixed = statistics.linear_regression(images, seconds)
        if fixed >= 0 and slope > 0:
            return 1 / slope, fixed
    return sum(images) / sum(seconds), 0.0


def _noise(values: dict[str, Any]) -> float:
    """Returns the standard deviation of a step, from the lowest and highest rate."""
    median = values["images_per_second"]
    shortest, longest = (median / values[name] for name in ("max", "min"))
    return stragglers.noise_of_range(shortest, longest, 1.0, int(values["steps"]))


def _read(path: str) -> dict[str, Any]:
    """Returns the results in a file.

    Raises:
        UserError: If they aren't a benchmark's.
    """
    expected = "--benchmark must name files that eval/benchmark.py --json printed"
    try:
        lines = Path(path).read_text(encoding="utf-8").strip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it isn't text"
        raise UserError(f"{expected}; {path}: {reason}.") from error
    text = lines[-1] if lines else ""
    if len(lines) > 1 and lines[0].startswith("{"):
        text = "\n".join(lines)  # Somebody has formatted it.
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{expected}; {path} has no JSON in its last line.") from error
    missing = [name for name in _KEYS if name not in _as_dict(values)]
    if missing:
        raise UserError(f"{expected}; {path} has no {missing[0]}.")
    for name in _NUMBERS:
        value = values[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            raise UserError(f"{expected}; {name} of {path} is {value!r}.")
    if values["infer"]:
        raise UserError(
            f"--benchmark must be of training; {path} is of evaluation (--infer)."
        )
    return dict(values)


def _as_dict(values: Any) -> dict[str, Any]:
    return values if isinstance(values, dict) else {}
