"""`model_dir/metrics.jsonl`: the numbers of a run, one JSON object a line.

Each has `kind`, `step`, `epoch` and the numbers of its kind: `loss`, `learning_rate`,
`images_per_second` and `input_wait_share` of "train", and `top1`, `top5`, `loss` and
`count` of "eval", and of "eval_ema" for the moving average of the weights.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "metrics.jsonl"

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """Returns the lines of a file, without those that can't be read."""
    return read_and_count(path)[0]


def read_and_count(path: Path) -> tuple[list[Line], int]:
    """Returns the lines of a file, and how many others can't be read.

    A last one that was cut is left out, and not counted.
    """
    found, num_unreadable = [], 0
    for text in path.read_bytes().split(b"\n")[:-1]:
        try:
            line = json.loads(text)
            is_line = isinstance(line["kind"], str) and isinstance(line["step"], int)
        except (ValueError, TypeError, KeyError):
            is_line = False
        if is_line:
            found.append(line)
        else:
            num_unreadable += 1
    return found, num_unreadable


def make_line(kind: str, step: int, epoch: float, numbers: Mapping[str, float]) -> Line:
    """Returns a line; floats keep seven digits, what a float32 has."""
    return {
        "kind": kind,
        "step": step,
        "epoch": round(epoch, 4),
        **{name: _rounded(value) for name, value in numbers.items()},
    }


def encode(line: Line) -> str:
    """Returns the text of a line, its end included."""
    return json.dumps(line) + "\n"


def _rounded(value: float) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return float(f"{value:.7g}")
