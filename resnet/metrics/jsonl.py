"""`model_dir/metrics.jsonl`: the metrics of a run, one JSON object per line.

Each line has `kind`, `step`, `epoch` and the metrics of its kind. Lines of kind "train"
have `loss` (the sum of `cross_entropy` and `weight_penalty`), `learning_rate`,
`images_per_second` and the costs of the steps (`step_costs`), with several ranks also
`rank_images_per_second`, the only list. Lines of kind "eval", and "eval_ema" for the
moving average of the weights, have `top1`, `top5`, `balanced_accuracy`, `macro_f1`, or
with several labels an image `mean_average_precision` and `mean_roc_auc`; `count`, the
same losses, and `seconds`, the time that the evaluation took; so has "eval_train" for
training images of a set without validation. All have `time`, in seconds since 1970.

Lines of kind "receipt" follow a checkpoint, and have what a run can be verified by, as
CRC-32C: the digest of the state (`state_digest`), that of all lines before, and those
of each rank's gradients in the next step. Lines of kind "train" have the digest of rank
0's state where it costs little.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from resnet.base import json_file
from resnet.config.config import METRICS_FILE
from resnet.metrics.table import OF_RANKS

FILE = METRICS_FILE
RECEIPT = "receipt"
TIME = "time"
STATE_DIGEST = "state_digest"
NOT_METRICS = ("kind", "step", "epoch", TIME, STATE_DIGEST)

_KIND = re.compile(r"\w{1,100}", re.ASCII)
_END_OF_STEPS = 2**63  # TensorBoard's steps are int64.

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """Returns the lines of a file that have metrics and can be parsed."""
    return with_metrics(read_and_count(path)[0])


def with_metrics(lines: Iterable[Line]) -> list[Line]:
    """Returns all lines except the receipts."""
    return [line for line in lines if line["kind"] != RECEIPT]


def read_and_count(path: Path) -> tuple[list[Line], int]:
    """Returns the whole lines of a file, and how many of them can't be parsed."""
    return json_file.parse_lines(path.read_bytes().split(b"\n")[:-1], _is_line)


def make_line(kind: str, step: int, epoch: float, numbers: Mapping[str, Any]) -> Line:
    """Returns a line; floats keep seven digits, as a float32, a time milliseconds."""
    numbers = {name: _rounded(name, value) for name, value in numbers.items()}
    return {"kind": kind, "step": step, "epoch": round(epoch, 4), **numbers}


def encode(line: Line) -> str:
    """Returns a line as JSON, with its line break."""
    return json.dumps(line) + "\n"


def digest(lines: Iterable[Line]) -> int:
    """Returns the CRC-32C of lines as they are in the file."""
    return int(google_crc32c.value("".join(map(encode, lines)).encode()))


def _is_line(line: Line) -> bool:
    """Returns whether an object has the form of a line that `make_line` returns."""
    kind, step = line["kind"], line["step"]
    return (
        isinstance(kind, str)
        and _KIND.fullmatch(kind) is not None  # It names a folder of TensorBoard.
        and type(step) is int
        and 0 <= step < _END_OF_STEPS
        and all(_is_value(name, line[name]) for name in line if name != "kind")
    )


def _is_value(name: str, value: Any) -> bool:
    if name in (*OF_RANKS, "gradient_digests"):
        return isinstance(value, list) and all(map(_is_number, value))
    return _is_number(value)


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and float(value) is not None
    except OverflowError:
        return False


def _rounded(name: str, value: Any) -> Any:
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if name == TIME:
        return round(value, 3)
    return float(f"{value:.7g}")
