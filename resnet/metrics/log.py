"""Rank 0's log of the metrics of a run: `metrics.jsonl` and TensorBoard's events."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from resnet.base.atomic_files import atomic_write_bytes
from resnet.base.errors import UserError
from resnet.metrics import jsonl
from resnet.metrics.append_file import AppendFile
from resnet.metrics.event_file import EventFile

TENSORBOARD_FOLDER = "tensorboard"


class MetricsLog:
    """Writes the metrics on rank 0, and does nothing on other ranks.

    A run that resumes from an older step first drops the lines after that step, and
    writes TensorBoard's files again from the rest, since events can't be removed.

    Attributes:
        num_lines: Number of lines in the file, including those kept from earlier
            starts; 0 on other ranks than rank 0.
    """

    def __init__(
        self,
        model_dir: Path,
        start_step: int,
        rank: int,
        was_evaluated: bool = True,
        num_expected: int | None = None,
    ) -> None:
        """Continues the files of a run, or creates them.

        Args:
            model_dir: Folder of the run.
            start_step: Number of steps done.
            rank: Rank of this process.
            was_evaluated: Whether the present state has been evaluated already, so that
                its evaluation lines are kept.
            num_expected: Number of lines that the run had logged when it saved that
                state; None if that isn't known.

        Raises:
            UserError: If the file can't be read or written.
        """
        self.num_lines = 0
        self._is_writer = rank == 0
        if not self._is_writer:
            return
        path = model_dir / jsonl.FILE
        try:
            kept = _drop_lines_after(path, start_step, was_evaluated)
            self._file = AppendFile(path)
        except OSError as error:
            raise UserError(
                f"the metrics file {path} can't be read and written:"
                f" {os.strerror(error.errno or 0)}. Free disk space, or check its"
                " permissions."
            ) from error
        self.num_lines = len(kept)
        if num_expected is not None and len(kept) < num_expected:
            logging.warning(
                "%d of the %d lines of %s up to step %d are missing: the disk was full,"
                " or the file was removed or changed. The learning curve has a gap.",
                num_expected - len(kept),
                num_expected,
                path,
                start_step,
            )
        shutil.rmtree(model_dir / TENSORBOARD_FOLDER, ignore_errors=True)
        self._folder = model_dir / TENSORBOARD_FOLDER
        self._event_files: dict[str, EventFile] = {}
        for line in kept:
            self._summarize(line)
        self._flush()

    def write(
        self, kind: str, step: int, epoch: float, numbers: Mapping[str, Any]
    ) -> None:
        """Appends a line of metrics.

        Args:
            kind: Kind of the line: "train", "eval" or "eval_ema".
            step: Number of steps done.
            epoch: Number of epochs done.
            numbers: The metrics, by name.
        """
        if not self._is_writer:
            return
        self.num_lines += 1
        line = jsonl.make_line(kind, step, epoch, numbers)
        self._file.write(jsonl.encode(line))
        self._summarize(line)
        self._flush()

    def sync(self) -> None:
        """Flushes the lines so far to disk; to be called before a checkpoint is saved.

        A run that resumes from the checkpoint expects all lines up to its step, also
        after a crash of the host.
        """
        if self._is_writer:
            self._file.sync()

    def _summarize(self, line: jsonl.Line) -> None:
        kind = line["kind"]
        with contextlib.suppress(tf.errors.OpError):  # A full disk.
            if kind not in self._event_files:
                self._event_files[kind] = EventFile(self._folder / kind)
            self._event_files[kind].add(line)

    def _flush(self) -> None:
        """Flushes TensorBoard's files; a full disk is ignored."""
        for file in self._event_files.values():
            with contextlib.suppress(tf.errors.OpError):
                file.flush()

    def close(self) -> None:
        """Closes the files."""
        if self._is_writer:
            self._file.close()
            for file in self._event_files.values():
                with contextlib.suppress(tf.errors.OpError):
                    file.close()


def _drop_lines_after(path: Path, step: int, was_evaluated: bool) -> list[jsonl.Line]:
    """Rewrites the file without the lines that the run will write again.

    Returns:
        The lines that are kept.
    """
    lines: list[jsonl.Line] = []
    num_unreadable = 0
    if path.exists():
        lines, num_unreadable = jsonl.read_and_count(path)
    if num_unreadable:
        logging.warning(
            "%d line(s) of %s can't be parsed and are dropped", num_unreadable, path
        )
    kept = [
        line
        for line in lines
        if line["step"] < step
        or (line["step"] == step and (was_evaluated or line["kind"] == "train"))
    ]
    text = "".join(map(jsonl.encode, kept))
    atomic_write_bytes(path, text.encode())
    return kept
