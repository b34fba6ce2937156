"""Rank 0's log of the metrics of a run: `metrics.jsonl` and TensorBoard's events."""

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import tensorflow as tf
from absl import logging

from resnet.base.atomic_files import atomic_write_bytes, is_at
from resnet.base.errors import UserError
from resnet.metrics import jsonl
from resnet.metrics.table import OF_RANKS

TENSORBOARD_FOLDER = "tensorboard"
_EVENT_VERSION = "brain.Event:2"  # Of the format; each file begins with it.


class AppendFile:
    """A file that grows line by line; a full disk doesn't end the run.

    Lines that can't be written are kept, and retried with the next line. If the file is
    removed or replaced, all of it is written again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        self._waiting = bytearray()
        self._has_failed = False

    def write(self, text: str, is_synced: bool = False) -> None:
        """Appends a text; `is_synced` flushes all lines so far to disk too."""
        self._waiting += text.encode()
        try:
            if not is_at(self._file.fileno(), self._path):
                self._write_again()
            while self._waiting:
                num_written = self._file.write(self._waiting)
                del self._waiting[:num_written]
            if is_synced:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._report(error)
        else:
            self._has_failed = False

    def _open(self) -> None:
        self._file = open(self._path, "a+b", buffering=0)  # noqa: SIM115 - see close.

    def _write_again(self) -> None:
        """Writes the file that is still open to its path; what is there is renamed."""
        self._file.seek(0)
        contents = self._file.read()
        if self._path.exists():
            suffix = f".replaced-{time.time():.0f}"
            self._path.rename(self._path.with_name(self._path.name + suffix))
        atomic_write_bytes(self._path, contents)
        self._file.close()
        self._open()
        logging.warning("%s was removed or replaced, and is restored.", self._path)

    def _report(self, error: OSError) -> None:
        kept = "Its lines are kept in memory until it can be written again."
        text = kept if self._waiting else "Its last lines may be lost."
        if not self._has_failed:
            reason = os.strerror(error.errno or 0)
            logging.error("%s can't be written (%s). %s", self._path, reason, text)
        self._has_failed = True

    def close(self) -> None:
        """Writes the lines that are left, if possible, and closes the file."""
        self.write("")
        try:
            self._file.close()
        except OSError as error:  # Of NFS, which may write only now.
            self._report(error)


class EventFile:
    """TensorBoard's events of a kind of metrics; `tf.errors.OpError` on a full disk.

    `tf.summary.scalar` takes 0.6 ms for a number, this 8 us, with a time of its own.
    The file begins a session: a TensorBoard that shows the events of an earlier file,
    which this one replaces, drops them.
    """

    def __init__(self, folder: Path) -> None:
        tf.io.gfile.makedirs(str(folder))
        name = f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{os.getpid()}"
        self.writer = tf.io.TFRecordWriter(str(folder / name))
        begin = tf.compat.v1.Event(wall_time=time.time(), file_version=_EVENT_VERSION)
        self.writer.write(begin.SerializeToString())
        session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        start = tf.compat.v1.Event(wall_time=time.time(), session_log=session)
        self.writer.write(start.SerializeToString())

    def add(self, line: jsonl.Line) -> None:
        """Adds the numbers of a line, at the time that the line has."""
        when = float(line.get(jsonl.TIME, time.time()))
        event = tf.compat.v1.Event(wall_time=when, step=line["step"])
        for name, number in line.items():
            if name not in jsonl.NOT_METRICS and name not in OF_RANKS:
                value = event.summary.value.add(tag=name)
                value.metadata.plugin_data.plugin_name = "scalars"
                value.tensor.dtype = tf.float32.as_datatype_enum
                value.tensor.tensor_shape.SetInParent()
                value.tensor.float_val.append(float(number))
        self.writer.write(event.SerializeToString())


class MetricsLog:
    """Writes the metrics on rank 0, and does nothing on other ranks.

    A run that resumes from an older step first drops the lines after that step, and
    writes TensorBoard's files again from the rest, since events can't be removed.

    Attributes:
        num_lines: The lines in the file, also of earlier starts; 0 on other ranks.
        digest: The CRC-32C of these lines.
    """

    def __init__(
        self,
        model_dir: Path,
        start_step: int,
        rank: int,
        was_evaluated: bool = True,
        num_expected: int | None = None,
    ) -> None:
        """Continues the files of a run, or creates them; UserError where it can't.

        `was_evaluated` keeps the evaluations of the present state; `num_expected` are
        the lines when the run saved it, None if unknown.
        """
        self.num_lines = self.digest = 0
        self._is_writer = rank == 0
        if not self._is_writer:
            return
        path = model_dir / jsonl.FILE
        try:
            kept = _drop_lines_after(path, start_step, was_evaluated)
            self._file = AppendFile(path)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise UserError(f"{path} can't be read and written: {reason}.") from error
        self.num_lines = len(kept)
        self.digest = jsonl.digest(kept)
        if num_expected is not None and len(kept) < num_expected:
            logging.warning(
                "%d of the %d lines of %s up to step %d are missing: the disk was full,"
                " or the file was changed.",
                num_expected - len(kept),
                num_expected,
                path,
                start_step,
            )
        self._folder = model_dir / TENSORBOARD_FOLDER
        shutil.rmtree(self._folder, ignore_errors=True)
        self._event_files: dict[str, EventFile] = {}
        for line in kept:
            self._summarize(line)
        self._call_writers("flush")

    def write(
        self, kind: str, step: int, epoch: float, numbers: Mapping[str, Any]
    ) -> None:
        """Appends a line of metrics after `step` steps; `kind` is as in `jsonl`."""
        if not self._is_writer:
            return
        self.num_lines += 1
        line = jsonl.make_line(kind, step, epoch, numbers)
        text = jsonl.encode(line)
        self.digest = google_crc32c.extend(self.digest, text.encode())
        self._file.write(text)
        self._summarize(line)
        self._call_writers("flush")

    def sync(self) -> None:
        """Flushes the lines so far to disk, before a checkpoint that counts them."""
        if self._is_writer:
            self._file.write("", is_synced=True)

    def _summarize(self, line: jsonl.Line) -> None:
        kind = line["kind"]
        if kind == jsonl.RECEIPT:
            return
        with contextlib.suppress(tf.errors.OpError):  # A full disk.
            if kind not in self._event_files:
                self._event_files[kind] = EventFile(self._folder / kind)
            self._event_files[kind].add(line)

    def _call_writers(self, action: str) -> None:
        for file in self._event_files.values():
            with contextlib.suppress(tf.errors.OpError):
                getattr(file.writer, action)()

    def close(self) -> None:
        """Closes the files."""
        if self._is_writer:
            self._file.close()
            self._call_writers("close")


def _drop_lines_after(path: Path, step: int, was_evaluated: bool) -> list[jsonl.Line]:
    """Rewrites the file without the lines that come again; returns what is kept."""
    lines, num_unreadable = jsonl.read_and_count(path) if path.exists() else ([], 0)
    if num_unreadable:
        logging.warning(
            "lines of %s that can't be parsed: %d, dropped", path, num_unreadable
        )
    again = {jsonl.RECEIPT}  # Of the lines of the present state.
    if not was_evaluated:
        again |= {line["kind"] for line in lines} - {"train"}
    kept = [
        line
        for line in lines
        if line["step"] < step or (line["step"] == step and line["kind"] not in again)
    ]
    atomic_write_bytes(path, "".join(map(jsonl.encode, kept)).encode())
    return kept
