"""What becomes of a record that can't be read: the run ends, or another stands in.

The graph that reads records knows nothing of this. When it fails, the records of the
failed batch are looked at one by one, in Python, and what is found out about them makes
the sentence of the error, or the list of records that the next graph does without.
"""

import os
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from absl import logging

from data_prep.errors import UserError
from data_prep.records import scan, tfrecord_format
from resnet.data.record_files import RecordFiles

# More than both is no accident of single records, and to train on is no use.
MOST_DAMAGED_SHARE = 0.01
MOST_DAMAGED = 10


@dataclass(frozen=True)
class Replacements:
    """Which examples are read in place of damaged ones.

    A damaged example's is the next one in the order of the files that is not damaged,
    after the last the first: so it depends on the damage alone, not on who met it when.

    Attributes:
        damaged: int64, sorted.
        replacements: int64, one for each.
    """

    damaged: np.ndarray
    replacements: np.ndarray

    @classmethod
    def of(cls, damaged: set[int], num_examples: int) -> "Replacements":
        """Returns those of some damaged examples, fewer than `num_examples`."""
        replacements = []
        for example in sorted(damaged):
            other = (example + 1) % num_examples
            while other in damaged:
                other = (other + 1) % num_examples
            replacements.append(other)
        return cls(
            np.array(sorted(damaged), np.int64), np.array(replacements, np.int64)
        )

    def replace(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the examples to read, and whether each is the one that was asked for.

        Args:
            examples: int64 of any shape.
        """
        if not len(self.damaged):
            return examples, tf.ones_like(examples, tf.bool)
        damaged = tf.constant(self.damaged)
        place = tf.searchsorted(damaged, tf.reshape(examples, [-1]))
        place = tf.reshape(tf.minimum(place, len(self.damaged) - 1), tf.shape(examples))
        is_damaged = tf.gather(damaged, place) == examples
        stand_in = tf.gather(tf.constant(self.replacements), place)
        return tf.where(is_damaged, stand_in, examples), ~is_damaged


class CorruptRecords:
    """The damaged records of one split, as far as this rank has met them."""

    def __init__(self, records: RecordFiles, policy: str) -> None:
        """Knows of none yet.

        Args:
            records: The split.
            policy: One of `resnet.config.ON_BAD_RECORD`.
        """
        self._records = records
        self._policy = policy
        self._damaged: set[int] = set()

    @property
    def replacements(self) -> Replacements:
        """What to read in place of those known so far."""
        return Replacements.of(self._damaged, self._records.num_examples)

    def count(self, first_example: int, end_example: int) -> int:
        """Returns how many are known from `first_example` to `end_example - 1`."""
        return sum(first_example <= one < end_example for one in self._damaged)

    def learn(self, examples: np.ndarray) -> bool:
        """Looks for damaged records among the examples of a batch that failed.

        Returns:
            Whether there are any. Then the next graph can do without them.

        Raises:
            UserError: If there are and the policy is "fail", if they are too many, or
                if a file can't be read.
        """
        found = {}
        for example in sorted(set(examples.tolist()) - self._damaged):
            damage = describe_damage(self._records, example)
            if damage:
                found[example] = damage
        if not found:
            return False
        if self._policy == "fail":
            raise UserError(
                f"{next(iter(found.values()))}. Restore the file or convert it again,"
                " or give --on_bad_record=skip."
            )
        for damage in found.values():
            logging.error("skipping a record: %s", damage)
        self._damaged.update(found)
        num_examples = self._records.num_examples
        most = max(MOST_DAMAGED, int(MOST_DAMAGED_SHARE * num_examples))
        most = min(most, num_examples - 1)  # One must be there to stand in.
        if len(self._damaged) > most:
            raise UserError(
                f"{len(self._damaged)} of {num_examples} records are damaged, the last"
                f" one found: {damage}. At most {most} are skipped; restore or convert"
                " the set again."
            )
        return True


def describe_damage(records: RecordFiles, example: int) -> str | None:
    """Returns what is wrong with a record, with its file and offset; None: nothing.

    Raises:
        UserError: If the file can't be read.
    """
    path = records.paths[records.file_of_example[example]]
    offset = int(records.offset_of_example[example])
    where = f"the record at byte {offset} of {path} is damaged"
    try:
        data = _read_record(path, offset)
    except OSError as error:
        raise UserError(
            f"the record file {path} can't be read ({os.strerror(error.errno or 0)});"
            " put it back"
        ) from error
    except tfrecord_format.CorruptRecord as error:
        return f"{where}: {error}"
    try:
        features = tfrecord_format.parse_example(data)
        encoded = bytes(scan.the_bytes(features, records.image_key))
        label = scan.the_integer(features, records.label_key)
        image_format = scan.image_format_of(memoryview(encoded))
    except ValueError as error:
        return f"{where}: {error}"
    num_classes = len(records.class_names)
    if not 0 <= label - records.first_label < num_classes:
        return (
            f"{where}: its label is {label}, and the {num_classes} classes have"
            f" those from {records.first_label} on"
        )
    if image_format != records.image_format:
        return (
            f"{where}: its picture is a {image_format.upper()}, not a"
            f" {records.image_format.upper()}"
        )
    try:
        tf.io.decode_image(encoded, channels=3)
    except tf.errors.OpError as error:
        return f"{where}: its picture can't be decoded ({error.message})"
    return None


def _read_record(path: str, offset: int) -> memoryview:
    with open(path, "rb") as file:
        file.seek(offset)
        header = file.read(tfrecord_format.HEADER_BYTES)
        length = tfrecord_format.record_length(header, offset)
        # No more than there is: a faulty writer's length can be anything.
        num_left = os.fstat(file.fileno()).st_size - file.tell()
        rest = file.read(min(length + tfrecord_format.FOOTER_BYTES, num_left))
    return tfrecord_format.read_record(header + rest, 0)
