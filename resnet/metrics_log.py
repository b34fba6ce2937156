"""Rank 0's log of a run's numbers: `metrics.jsonl`, and TensorBoard's events."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from data_prep.atomic_files import atomic_write_bytes
from resnet import metrics_file

TENSORBOARD_FOLDER = "tensorboard"


class MetricsLog:
    """Writes on rank 0, does nothing on the others.

    A run that goes on from an older step drops the lines after it first.
    """

    def __init__(self, model_dir: Path, start_step: int, rank: int) -> None:
        self._is_writer = rank == 0
        if not self._is_writer:
            return
        path = model_dir / metrics_file.FILE
        old = metrics_file.read(path) if path.exists() else []
        kept = [metrics_file.encode(one) for one in old if one["step"] <= start_step]
        atomic_write_bytes(path, "".join(kept).encode())
        self._file = path.open("a", buffering=1)
        self._summaries = {
            kind: tf.summary.create_file_writer(
                str(model_dir / TENSORBOARD_FOLDER / kind)
            )
            for kind in ("train", "eval")
        }

    def write(
        self, kind: str, step: int, epoch: float, numbers: Mapping[str, float]
    ) -> None:
        """Appends the numbers of one kind, "train" or "eval", at one step."""
        if not self._is_writer:
            return
        line = metrics_file.make_line(kind, step, epoch, numbers)
        self._file.write(metrics_file.encode(line))
        with self._summaries[kind].as_default(step):
            for name, value in numbers.items():
                tf.summary.scalar(name, value)
        self._summaries[kind].flush()

    def close(self) -> None:
        """Closes the files."""
        if self._is_writer:
            self._file.close()
            for summary in self._summaries.values():
                summary.close()
