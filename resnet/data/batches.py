"""The batches of a rank as an iterator that can replace corrupt records."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.data import input_pipeline
from resnet.data.augmentation import preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from resnet.data.corrupt_records import CorruptRecords, Replacements
from resnet.data.decoded_cache import DecodedCache
from resnet.data.input_pipeline import Batch
from resnet.data.record_files import ExampleShard


def training(
    config: Config,
    shard: ExampleShard,
    num_ranks: int,
    start_step: int,
    num_parallel_calls: int,
) -> "Batches":
    """Returns `train_batches` with the settings of a run.

    Args:
        config: The settings of the run.
        shard: The examples that this rank trains on.
        num_ranks: The number of all ranks of the job.
        start_step: The number of the first global batch.
        num_parallel_calls: The number of images that are decoded at the same time.
    """
    return train_batches(
        shard,
        config.phases,
        seed=config.seed,
        local_batch_size=config.global_batch_size // num_ranks,
        accumulation_steps=config.accumulation_steps,
        start_step=start_step,
        num_classes=config.num_classes,
        on_bad_record=config.on_bad_record,
        decoded_cache_mb=config.decoded_cache_mb,
        num_parallel_calls=num_parallel_calls,
        normalization=normalization_of(config),
    )


def normalization_of(config: Config) -> Normalization:
    """Returns the mean and standard deviation of the images of a run."""
    return Normalization(config.channel_mean, config.channel_stddev)


def train_batches(
    shard: ExampleShard,
    phases: Sequence[Phase],
    *,
    seed: int,
    local_batch_size: int,
    num_classes: int,
    num_parallel_calls: int,
    accumulation_steps: int = 1,
    start_step: int = 0,
    on_bad_record: str = "fail",
    decoded_cache_mb: int = 0,
    normalization: Normalization = preprocessing.IMAGENET,
) -> "Batches":
    """Returns the micro-batches of this rank, in order, from a step to the run's end.

    Each step has `accumulation_steps` micro-batches of equal size: the rank's slice of
    the global batch, divided in its order.

    Args:
        shard: The examples that this rank trains on.
        phases: The phases of the run; the last batch is that of their last step.
        seed: The seed of the order of the examples and of their augmentation.
        local_batch_size: The number of examples of one rank in one step.
        num_classes: The number of classes of the data set.
        num_parallel_calls: The number of images that are decoded at the same time.
        accumulation_steps: The number of micro-batches of a rank in each step.
        start_step: The number of the first global batch.
        on_bad_record: "fail" or "skip", as `CorruptRecords` takes it.
        decoded_cache_mb: The size of the cache of decoded images, in units of 10**6
            bytes; 0 for no cache.
        normalization: The mean and standard deviation of the images.
    """
    cache = DecodedCache(decoded_cache_mb) if decoded_cache_mb else None

    def make_dataset(micro_batch: int, replacements: Replacements) -> tf.data.Dataset:
        return input_pipeline.train_batches(
            shard.records,
            phases,
            seed=seed,
            accumulation_steps=accumulation_steps,
            rank=shard.rank,
            num_ranks=shard.num_ranks,
            local_batch_size=local_batch_size,
            start_micro_batch=micro_batch,
            num_parallel_calls=num_parallel_calls,
            replacements=replacements,
            cache=cache,
            normalization=normalization,
        )

    def examples_of_micro_batch(micro_batch: int) -> np.ndarray:
        return input_pipeline.examples_of_micro_batch(
            micro_batch,
            seed,
            shard.rank,
            shard.num_ranks,
            local_batch_size,
            shard.records.num_examples,
            accumulation_steps,
        )

    return Batches(
        make_dataset,
        examples_of_micro_batch,
        CorruptRecords(shard.records, on_bad_record),
        start_step * accumulation_steps,
        num_classes,
    )


def evaluation(
    config: Config,
    shard: ExampleShard,
    batch_size: int,
    num_parallel_calls: int,
    corrupt_records: CorruptRecords,
    num_crops: int = 1,
) -> "Batches":
    """Returns the examples that this rank evaluates, each once.

    Args:
        config: The settings of the run.
        shard: The examples that this rank and others evaluate on.
        batch_size: The number of examples of each batch of this rank.
        num_parallel_calls: The number of images that are decoded at the same time.
        corrupt_records: The corrupt records of the shard that are known so far.
        num_crops: The number of crops of each image, as `input_pipeline.eval_batches`
            takes it.
    """
    first, end = shard.first_example, shard.end_example

    def make_dataset(start_batch: int, replacements: Replacements) -> tf.data.Dataset:
        return input_pipeline.eval_batches(
            shard.records,
            image_size=config.image_size,
            crop=config.eval_crop,
            crop_fraction=config.eval_crop_fraction,
            first_example=first,
            end_example=end,
            batch_size=batch_size,
            start_batch=start_batch,
            num_parallel_calls=num_parallel_calls,
            replacements=replacements,
            num_crops=num_crops,
            normalization=normalization_of(config),
        )

    def examples_of_batch(batch: int) -> np.ndarray:
        begin = first + batch * batch_size
        return np.arange(begin, min(begin + batch_size, end))

    return Batches(
        *(make_dataset, examples_of_batch, corrupt_records, 0, config.num_classes),
        num_examples=end - first,
    )


class Batches(Iterator[Batch]):
    """Batches that continue after a failure that was caused by corrupt records.

    They also continue after a failure that doesn't recur, such as one of a file server.
    A batch with replaced records has the same size as any other, so the other ranks are
    not affected.
    """

    def __init__(
        self,
        make_dataset: Callable[[int, Replacements], tf.data.Dataset],
        examples_of_batch: Callable[[int], np.ndarray],
        corrupt_records: CorruptRecords,
        start_batch: int,
        num_classes: int,
        num_examples: int | None = None,
    ) -> None:
        """Starts reading at a batch.

        Args:
            make_dataset: A function from the number of a batch and the replacements of
                corrupt examples to a dataset of the `Batch`es from this number on.
            examples_of_batch: A function from the number of a batch to its examples
                before any is replaced, int64 `[batch]`.
            corrupt_records: The corrupt records of the split that are known so far.
            start_batch: The number of the first batch.
            num_classes: The number of classes; each label has to be below.
            num_examples: The number of all examples of the batches, on which the limit
                of corrupt ones depends; None if their order is random, so that the
                examples up to a batch are a sample of the split.
        """
        self._make_dataset = make_dataset
        self._examples_of_batch = examples_of_batch
        self._corrupt_records = corrupt_records
        self._first = self._next = start_batch
        self._num_classes = num_classes
        self._num_examples = num_examples
        self._failed: int | None = None  # The last batch that failed without a reason.
        self._iterator = self._start()

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises:
            UserError: If a record is corrupt and can't be replaced.
            RuntimeError: If a record file can't be read now.
        """
        while True:
            try:
                batch = next(self._iterator)
                _check_labels(batch.labels.numpy(), self._num_classes)
            # A UnicodeDecodeError is an OpError whose message quotes a corrupt record.
            except (tf.errors.OpError, UnicodeDecodeError, _LabelOutOfRange) as error:
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


class _LabelOutOfRange(ValueError):
    """A label without a class."""


def _check_labels(labels: np.ndarray, num_classes: int) -> None:
    if labels.min() < 0 or labels.max() >= num_classes:
        raise _LabelOutOfRange(
            f"labels must be from 0 to {num_classes - 1}; they are {labels.tolist()}"
        )
