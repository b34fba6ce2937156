"""TensorBoard's events of one kind of metrics, as `tf.summary.scalar` writes them."""

import os
import platform
import time
from pathlib import Path

import tensorflow as tf

from resnet.metrics import jsonl

_VERSION = "brain.Event:2"  # Of the format; each file begins with it.
_NOT_METRICS = ("kind", "step", "epoch", jsonl.TIME, jsonl.RANK_SPEEDS)


class EventFile:
    """Writes metrics lines to an event file, at the time that each line has.

    It takes 8 us for a number, where `tf.summary.scalar` runs an op, which takes 0.6
    ms, and has no argument for the time.
    """

    def __init__(self, folder: Path) -> None:
        """Creates the folder and a file in it.

        Raises:
            tf.errors.OpError: If they can't be written.
        """
        tf.io.gfile.makedirs(str(folder))
        name = f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{os.getpid()}"
        self._writer = tf.io.TFRecordWriter(str(folder / name))
        self._write(tf.compat.v1.Event(wall_time=time.time(), file_version=_VERSION))

    def add(self, line: jsonl.Line) -> None:
        """Adds the numbers of a line.

        Raises:
            tf.errors.OpError: If the file can't be written.
        """
        # Older versions wrote no time.
        when = float(line.get(jsonl.TIME, time.time()))
        event = tf.compat.v1.Event(wall_time=when, step=line["step"])
        for name, number in line.items():
            if name not in _NOT_METRICS:
                value = event.summary.value.add(tag=name)
                value.metadata.plugin_data.plugin_name = "scalars"
                value.tensor.dtype = tf.float32.as_datatype_enum
                value.tensor.tensor_shape.SetInParent()
                value.tensor.float_val.append(float(number))
        self._write(event)

    def flush(self) -> None:
        """Flushes the file.

        Raises:
            tf.errors.OpError: If it can't be written.
        """
        self._writer.flush()

    def close(self) -> None:
        """Closes the file.

        Raises:
            tf.errors.OpError: If it can't be written.
        """
        self._writer.close()

    def _write(self, event: tf.compat.v1.Event) -> None:
        self._writer.write(event.SerializeToString())
