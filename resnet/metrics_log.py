"""Rank 0's log of a run's numbers: `metrics.jsonl`, and TensorBoard's events."""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from data_prep.atomic_files import atomic_write_bytes
from resnet import metrics_file
from resnet.append_file import AppendFile

TENSORBOARD_FOLDER = "tensorboard"
_NO_CURVES = ("kind", "step", "epoch")


class MetricsLog:
    """Writes on rank 0, does nothing on the others.

    A run that goes on from an older step drops the lines after it first, and gives
    TensorBoard the rest anew: its own files can't forget.
    """

    def __init__(self, model_dir: Path, start_step: int, rank: int) -> None:
        self._is_writer = rank == 0
        if not self._is_writer:
            return
        path = model_dir / metrics_file.FILE
        old = metrics_file.read(path) if path.exists() else []
        kept = [one for one in old if one["step"] <= start_step]
        text = "".join(metrics_file.encode(one) for one in kept)
        atomic_write_bytes(path, text.encode())
        self._file = AppendFile(path)
        shutil.rmtree(model_dir / TENSORBOARD_FOLDER, ignore_errors=True)
        self._summaries = {
            kind: tf.summary.create_file_writer(
                str(model_dir / TENSORBOARD_FOLDER / kind)
            )
            for kind in ("train", "eval")
        }
        for line in kept:
            self._summarize(line)
        self._flush()

    def write(
        self, kind: str, step: int, epoch: float, numbers: Mapping[str, float]
    ) -> None:
        """Appends the numbers of one kind, "train" or "eval", at one step."""
        if not self._is_writer:
            return
        line = metrics_file.make_line(kind, step, epoch, numbers)
        self._file.write(metrics_file.encode(line))
        self._summarize(line)
        self._flush()

    def sync(self) -> None:
        """Makes the lines so far outlast a crash: to be called before a checkpoint.

        A run that goes on from it drops the lines after it, and has to find the rest.
        """
        if self._is_writer:
            self._file.sync()

    def _summarize(self, line: metrics_file.Line) -> None:
        with (
            contextlib.suppress(tf.errors.OpError),  # A full disk.
            self._summaries[line["kind"]].as_default(line["step"]),
        ):
            for name, value in line.items():
                if name not in _NO_CURVES:
                    tf.summary.scalar(name, value)

    def _flush(self) -> None:
        """Writes what TensorBoard reads; on a full disk it does without."""
        for summary in self._summaries.values():
            with contextlib.suppress(tf.errors.OpError):
                summary.flush()

    def close(self) -> None:
        """Closes the files."""
        if self._is_writer:
            self._file.close()
            for summary in self._summaries.values():
                with contextlib.suppress(tf.errors.OpError):
                    summary.close()
