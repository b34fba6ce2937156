"""The batches of a rank as an iterator that can replace corrupt records."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from resnet.config.config import Config
from resnet.data import input_pipeline
from resnet.data.corrupt_records import CorruptRecords, Replacements
from resnet.data.input_pipeline import Batch, DecodedCache, Reading
from resnet.data.record_files import ExampleShard


def train_batches(reading: Reading, start_step: int = 0) -> "Batches":
    """Returns the micro-batches of this rank, in order, from a step to the run's end.

    A step has `accumulation_steps` of them: the rank's slice of the global batch.
    """
    megabytes, shard = reading.decoded_cache_mb, reading.shard
    cache = DecodedCache(megabytes) if megabytes else None

    def make_dataset(micro_batch: int, replacements: Replacements) -> tf.data.Dataset:
        return input_pipeline.train_batches(reading, micro_batch, replacements, cache)

    return Batches(
        make_dataset,
        functools.partial(_examples_of, reading),
        CorruptRecords(shard.records, reading.on_bad_record),
        start_step * reading.accumulation_steps,
    )


def chosen_batches(reading: Reading, rank: int, chosen: np.ndarray) -> "Batches":
    """Returns chosen micro-batches of any rank, as its `train_batches` have them.

    Their numbers are `[n]` int64, ascending. The rank must divide the same record files
    with others as this one.
    """
    shard = dataclasses.replace(reading.shard, rank=rank)
    reading = dataclasses.replace(reading, shard=shard)
    # A cache has images decoded whole, whose pixels differ from those of crops.
    cache = DecodedCache(0) if reading.decoded_cache_mb else None

    def make_dataset(first: int, replacements: Replacements) -> tf.data.Dataset:
        later = chosen[first:]
        start = int(later[0]) if later.size else 0
        return input_pipeline.train_batches(
            reading, start, replacements, cache, chosen=later
        )

    return Batches(
        make_dataset,
        lambda number: _examples_of(reading, int(chosen[number])),
        CorruptRecords(shard.records, reading.on_bad_record),
        0,
    )


def eval_batches(
    config: Config,
    shard: ExampleShard,
    batch_size: int,
    num_parallel_calls: int,
    corrupt_records: CorruptRecords,
    num_crops: int = 1,
) -> "Batches":
    """Returns the examples that this rank evaluates, as `input_pipeline` does."""
    first, end = shard.first_example, shard.end_example
    of_rank = config, shard, batch_size, num_parallel_calls, num_crops

    def examples_of_batch(batch: int) -> np.ndarray:
        begin = first + batch * batch_size
        return np.arange(begin, min(begin + batch_size, end))

    return Batches(
        functools.partial(input_pipeline.eval_batches, *of_rank),
        examples_of_batch,
        corrupt_records,
        start_batch=0,
        num_examples=end - first,
    )


def _examples_of(reading: Reading, micro_batch: int) -> np.ndarray:
    return input_pipeline.examples_of_micro_batch(
        micro_batch,
        reading.seed,
        reading.shard.rank,
        reading.shard.num_ranks,
        reading.local_batch_size,
        reading.shard.records.num_examples,
        reading.accumulation_steps,
        reading.classes,
    )


class Batches(Iterator[Batch]):
    """Batches that continue after corrupt records, and after a failure that is unique.

    A batch with replaced records has the same size as any other, so the other ranks are
    not affected.
    """

    def __init__(
        self,
        make_dataset: Callable[[int, Replacements], tf.data.Dataset],
        examples_of_batch: Callable[[int], np.ndarray],
        corrupt_records: CorruptRecords,
        start_batch: int,
        num_examples: int | None = None,
    ) -> None:
        """Starts reading at a batch.

        `make_dataset` returns the `Batch`es from a number on, `examples_of_batch` those
        of a number before any is replaced, int64 `[batch]`. The limit of corrupt ones
        depends on `num_examples` of all batches; None if their order is random, so that
        the examples up to a batch are a sample of the split.
        """
        self._make_dataset = make_dataset
        self._examples_of_batch = examples_of_batch
        self._corrupt_records = corrupt_records
        self._first = self._next = start_batch
        self._num_examples = num_examples
        self._failed: int | None = None  # The last batch that failed without a reason.
        self._iterator = self._start()

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises UserError if a record is corrupt and can't be replaced, and RuntimeError
        if a record file can't be read now.
        """
        while True:
            try:
                batch = next(self._iterator)
            # A UnicodeDecodeError is an OpError whose message quotes a corrupt record.
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                if not self._detect_corrupt_records():
                    if self._failed == self._next:
                        raise
                    self._failed = self._next
                    logging.warning("reading a batch again, which failed: %s", error)
                self._iterator = self._start()
            else:
                self._next += 1
                return batch

    def _detect_corrupt_records(self) -> bool:
        """Returns whether the next batch has corrupt records that weren't known."""
        examples = self._examples_of_batch(self._next)
        known = self._corrupt_records.replacements
        replacements = known.replacements[np.isin(known.corrupt, examples)]
        candidates = np.concatenate([examples, replacements])
        num_read = (self._next - self._first + 1) * len(examples)
        return self._corrupt_records.detect(candidates, self._num_examples or num_read)

    def _start(self) -> Iterator[Batch]:
        return iter(self._make_dataset(self._next, self._corrupt_records.replacements))
