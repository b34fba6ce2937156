"""Handling of corrupt records: the run fails, or other records replace them.

When the graph that reads records fails, Python checks those of the failed batch one by
one. The result is the message of the error, or what the next graph has to replace.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from absl import logging

from data_prep.records.verified import CORRUPT_ADVICE
from resnet.base.errors import UserError, naming_unreadable
from resnet.base.text import without_graph_names
from resnet.data import decoding
from resnet.data.record_files import RecordFiles

# A split with a larger fraction has a fault of more than single records. The others are
# allowed in addition, since the first examples can have more by chance.
MAX_CORRUPT_FRACTION = 0.01
MAX_CORRUPT = 10


@dataclass(frozen=True)
class Replacements:
    """The examples that are read in place of corrupt ones, int64 `[num_corrupt]` both.

    A corrupt example is replaced by the next intact one in the order of the files, in
    which the last is followed by the first, whichever rank detected it and when.
    """

    corrupt: np.ndarray  # Sorted.
    replacements: np.ndarray

    @classmethod
    def of(cls, corrupt: set[int], num_examples: int) -> "Replacements":
        """Returns the replacements of corrupt examples, some of `num_examples`."""
        ordered = sorted(corrupt)
        replacements = []
        for example in ordered:
            replacement = (example + 1) % num_examples
            while replacement in corrupt:
                replacement = (replacement + 1) % num_examples
            replacements.append(replacement)
        return cls(np.array(ordered, np.int64), np.array(replacements, np.int64))

    def replace(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the examples to read, and a mask that is False for replaced ones.

        They are `[n]` int64 and bool.
        """
        if not len(self.corrupt):
            return examples, tf.ones_like(examples, tf.bool)
        corrupt = tf.constant(self.corrupt)
        index = tf.minimum(tf.searchsorted(corrupt, examples), len(self.corrupt) - 1)
        is_corrupt = tf.gather(corrupt, index) == examples
        replacement = tf.gather(tf.constant(self.replacements), index)
        return tf.where(is_corrupt, replacement, examples), ~is_corrupt


class CorruptRecords:
    """The corrupt records of one split that this rank has detected so far."""

    def __init__(self, records: RecordFiles, policy: str) -> None:
        """Starts with none; the policy is "fail", or "skip", which replaces them."""
        self._records = records
        self._policy = policy
        self._corrupt: set[int] = set()

    @property
    def replacements(self) -> Replacements:
        """The replacements of the corrupt records known so far."""
        return Replacements.of(self._corrupt, self._records.num_examples)

    def count(self, first_example: int, end_example: int) -> int:
        """Returns the number of those from `first_example` to `end_example - 1`."""
        return sum(first_example <= example < end_example for example in self._corrupt)

    def detect(self, examples: np.ndarray, num_read: int = 0) -> bool:
        """Remembers the corrupt records among the examples, int64, of a failed batch.

        Returns whether there is one. `num_read` is the number of examples that this
        rank has read so far. Raises as `describe_corruption`, and UserError if a record
        is corrupt and the policy is "fail", or too many are.
        """
        descriptions = {}
        for example in sorted(set(examples.tolist()) - self._corrupt):
            description = describe_corruption(self._records, example)
            if description:
                descriptions[example] = description
        if not descriptions:
            return False
        if self._policy == "fail":
            raise UserError(f"{next(iter(descriptions.values()))}. {CORRUPT_ADVICE}")
        for description in descriptions.values():
            logging.error("skipping a record: %s", description)
        self._corrupt.update(descriptions)
        num_examples = self._records.num_examples
        num_read = min(num_read, num_examples)  # Later epochs read the same ones.
        limit = MAX_CORRUPT + int(MAX_CORRUPT_FRACTION * num_read)
        limit = min(limit, num_examples - 1)  # A replacement needs one intact record.
        if len(self._corrupt) > limit:
            raise UserError(
                f"at most {limit} corrupt records can be skipped in {num_read:,}"
                f" examples of a rank, but {len(self._corrupt)} were detected; the last"
                f" one: {description}. Restore the data set or convert it again."
            )
        return True


def describe_corruption(records: RecordFiles, example: int) -> str | None:
    """Returns the fault of a record with its file and offset, or None if it is intact.

    Raises UserError without a file that can be read, RuntimeError if it can't be now.
    """
    with naming_unreadable(records.paths[records.file_of_example[example]]):
        try:
            encoded, _ = records.read(example)
            original = decoding.original_of(tf.constant(encoded), records.image_format)
            decoding.decoded(original)
            return None
        except ValueError as error:
            fault = str(error)
        except tf.errors.OpError as error:
            reason = without_graph_names(error.message)
            fault = f"its image can't be decoded ({reason})"
    return f"{records.place_of(example)} is corrupt: {fault}"
