"""`metrics.jsonl` and TensorBoard's events, written by rank 0."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from data_prep.atomic_files import atomic_write_bytes

FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


class MetricsLog:
    """The numbers of a run: one JSON object a line, and the same for TensorBoard.

    Each line has `kind` ("train" or "eval"), `step`, `epoch`, and the numbers of its
    kind. A run that goes on from an older step drops the lines after it first.
    """

    def __init__(self, model_dir: Path, start_step: int, rank: int) -> None:
        self._file = None
        if rank != 0:
            return
        path = model_dir / FILE
        old = read(path) if path.exists() else []
        kept = [json.dumps(line) + "\n" for line in old if line["step"] <= start_step]
        atomic_write_bytes(path, "".join(kept).encode())
        self._file = path.open("a", buffering=1)
        self._writers = {
            kind: tf.summary.create_file_writer(
                str(model_dir / TENSORBOARD_FOLDER / kind)
            )
            for kind in ("train", "eval")
        }

    def write(
        self, kind: str, step: int, epoch: float, numbers: Mapping[str, float]
    ) -> None:
        """Appends the numbers of one kind at one step."""
        if self._file is None:
            return
        rounded = {name: _rounded(value) for name, value in numbers.items()}
        line = {"kind": kind, "step": step, "epoch": round(epoch, 4), **rounded}
        self._file.write(json.dumps(line) + "\n")
        with self._writers[kind].as_default(step):
            for name, value in numbers.items():
                tf.summary.scalar(name, value)
        self._writers[kind].flush()

    def close(self) -> None:
        """Closes the files."""
        if self._file is not None:
            self._file.close()
            for writer in self._writers.values():
                writer.close()


def read(path: Path) -> list[dict[str, float | str]]:
    """Returns the lines of a `metrics.jsonl`; a last one that was cut is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _rounded(value: float) -> float:
    """Returns a float with seven digits, what a float32 has; other values as they are."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return float(f"{value:.7g}")
