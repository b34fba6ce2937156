"""Rank 0's log of a run's numbers: `metrics.jsonl`, and TensorBoard's events."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf
from absl import logging

from data_prep.atomic_files import atomic_write_bytes
from data_prep.errors import UserError
from resnet import metrics_file
from resnet.append_file import AppendFile

TENSORBOARD_FOLDER = "tensorboard"
_NO_CURVES = ("kind", "step", "epoch")


class MetricsLog:
    """Writes on rank 0, does nothing on the others.

    A run that goes on from an older step drops the lines after it first, and gives
    TensorBoard the rest anew: its own files can't forget.
    """

    def __init__(
        self, model_dir: Path, start_step: int, rank: int, was_evaluated: bool = True
    ) -> None:
        """Goes on with the file of a run, or begins one.

        Args:
            model_dir: Of the run.
            start_step: Steps done.
            rank: Of this process.
            was_evaluated: Whether the state after those steps won't be evaluated again.

        Raises:
            UserError: If it can't be read or written.
        """
        self._is_writer = rank == 0
        if not self._is_writer:
            return
        path = model_dir / metrics_file.FILE
        try:
            kept = _drop_lines_after(path, start_step, was_evaluated)
            self._file = AppendFile(path)
        except OSError as error:
            raise UserError(
                f"{path} must be a file that can be read and written to:"
                f" {os.strerror(error.errno or 0)}. Make room, or see to its rights."
            ) from error
        shutil.rmtree(model_dir / TENSORBOARD_FOLDER, ignore_errors=True)
        self._folder = model_dir / TENSORBOARD_FOLDER
        self._summaries: dict[str, tf.summary.SummaryWriter] = {}
        for line in kept:
            self._summarize(line)
        self._flush()

    def write(
        self, kind: str, step: int, epoch: float, numbers: Mapping[str, float]
    ) -> None:
        """Appends the numbers of one kind, as `metrics_file` knows it, at one step."""
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
        kind = line["kind"]
        with contextlib.suppress(tf.errors.OpError):  # A full disk.
            if kind not in self._summaries:
                self._summaries[kind] = tf.summary.create_file_writer(
                    str(self._folder / kind)
                )
            with self._summaries[kind].as_default(line["step"]):
                self._write_scalars(line)

    def _write_scalars(self, line: metrics_file.Line) -> None:
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


def _drop_lines_after(
    path: Path, step: int, was_evaluated: bool
) -> list[metrics_file.Line]:
    """Rewrites the file without what the run will write again; returns its lines."""
    lines: list[metrics_file.Line] = []
    num_unreadable = 0
    if path.exists():
        lines, num_unreadable = metrics_file.read_and_count(path)
    if num_unreadable:
        logging.warning(
            "%d line(s) of %s can't be read, and are left out", num_unreadable, path
        )
    kept = [
        one
        for one in lines
        if one["step"] < step
        or (one["step"] == step and (was_evaluated or one["kind"] == "train"))
    ]
    text = "".join(metrics_file.encode(one) for one in kept)
    atomic_write_bytes(path, text.encode())
    return kept
