"""The batches of a rank, one after the other, past damaged records if they may be."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from resnet.config import Config
from resnet.data import input_pipeline
from resnet.data.corrupt_records import CorruptRecords, Replacements
from resnet.data.decoded_cache import DecodedCache
from resnet.data.example_shard import ExampleShard
from resnet.data.input_pipeline import Batch
from resnet.phases import Phase


def training(
    config: Config,
    share: ExampleShard,
    num_ranks: int,
    start_step: int,
    num_parallel_calls: int,
) -> "Batches":
    """Returns `train_batches` with the settings of a run.

    Args:
        config: The run's settings.
        share: What this rank trains on.
        num_ranks: All ranks of the job.
        start_step: First global batch.
        num_parallel_calls: Pictures that are decoded at the same time.
    """
    return train_batches(
        share,
        config.phases,
        seed=config.seed,
        local_batch_size=config.global_batch_size // num_ranks,
        accumulation_steps=config.accumulation_steps,
        start_step=start_step,
        num_classes=config.num_classes,
        on_bad_record=config.on_bad_record,
        decoded_cache_mb=config.decoded_cache_mb,
        num_parallel_calls=num_parallel_calls,
    )


def train_batches(
    share: ExampleShard,
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
) -> "Batches":
    """Returns this rank's part of each global batch from a step on.

    Each step has `accumulation_steps` of them, which are equal parts of the rank's
    examples in their order.

    Args:
        share: What this rank trains on.
        phases: The phases of the run; the last batch is that of their last step.
        seed: The seed of the order of the examples and of their augmentation.
        local_batch_size: The number of examples of one rank in one step.
        num_classes: The number of classes of the data set.
        num_parallel_calls: Pictures that are decoded at the same time.
        accumulation_steps: The number of parts of each step.
        start_step: First global batch.
        on_bad_record: "fail" or "skip", as `CorruptRecords` takes it.
        decoded_cache_mb: The size of the cache of decoded images; 0 for no cache.
    """
    cache = DecodedCache(decoded_cache_mb) if decoded_cache_mb else None

    def make_dataset(part: int, replacements: Replacements) -> tf.data.Dataset:
        return input_pipeline.train_batches(
            share.records,
            phases,
            seed=seed,
            accumulation_steps=accumulation_steps,
            rank=share.rank,
            num_ranks=share.num_ranks,
            local_batch_size=local_batch_size,
            start_part=part,
            num_parallel_calls=num_parallel_calls,
            replacements=replacements,
            cache=cache,
        )

    def examples_of_part(part: int) -> np.ndarray:
        return input_pipeline.examples_of_batch(
            part,
            seed,
            share.rank,
            share.num_ranks,
            local_batch_size,
            share.records.num_examples,
            accumulation_steps,
        )

    return Batches(
        make_dataset,
        examples_of_part,
        CorruptRecords(share.records, on_bad_record),
        start_step * accumulation_steps,
        num_classes,
    )


def evaluation(
    config: Config,
    share: ExampleShard,
    batch_size: int,
    num_parallel_calls: int,
    damaged: CorruptRecords,
    num_crops: int = 1,
) -> "Batches":
    """Returns the examples that this rank evaluates, each once.

    Args:
        config: The run's settings.
        share: What this rank evaluates on.
        batch_size: Examples of each batch of this rank.
        num_parallel_calls: Pictures that are decoded at the same time.
        damaged: The damaged records of the share, as far as they are known.
        num_crops: As `input_pipeline.eval_batches` takes it.
    """
    first, end = share.first_example, share.end_example

    def make_dataset(start_batch: int, replacements: Replacements) -> tf.data.Dataset:
        return input_pipeline.eval_batches(
            share.records,
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
        )

    def examples_of_batch(batch: int) -> np.ndarray:
        begin = first + batch * batch_size
        return np.arange(begin, min(begin + batch_size, end))

    return Batches(make_dataset, examples_of_batch, damaged, 0, config.num_classes)


class Batches(Iterator[Batch]):
    """Goes on behind a batch that failed, if damaged records were the reason.

    The other ranks see nothing of it: each batch has the size that it should have.
    """

    def __init__(
        self,
        make_dataset: Callable[[int, Replacements], tf.data.Dataset],
        examples_of_batch: Callable[[int], np.ndarray],
        damaged: CorruptRecords,
        start_batch: int,
        num_classes: int,
    ) -> None:
        """Begins with a batch.

        Args:
            make_dataset: Returns the `Batch`es from a number on.
            examples_of_batch: Returns a batch's examples before any is replaced.
            damaged: What is known of the split's damaged records.
            start_batch: Number of the first batch.
            num_classes: Labels are below.
        """
        self._make_dataset = make_dataset
        self._examples_of_batch = examples_of_batch
        self._damaged = damaged
        self._next = start_batch
        self._num_classes = num_classes
        self._iterator = self._start()

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises:
            UserError: If a record is damaged and none may be.
        """
        while True:
            try:
                batch = next(self._iterator)
                _check_labels(batch.labels.numpy(), self._num_classes)
            # A UnicodeDecodeError is an OpError whose message quotes a damaged record.
            except (tf.errors.OpError, UnicodeDecodeError, _LabelOutOfRange):
                examples = self._examples_of_batch(self._next)
                known = self._damaged.replacements
                replacements = known.replacements[np.isin(known.damaged, examples)]
                if not self._damaged.learn(np.concatenate([examples, replacements])):
                    raise
                self._iterator = self._start()
            else:
                self._next += 1
                return batch

    def _start(self) -> Iterator[Batch]:
        return iter(self._make_dataset(self._next, self._damaged.replacements))


class _LabelOutOfRange(ValueError):
    """A label that no class has."""


def _check_labels(labels: np.ndarray, num_classes: int) -> None:
    if labels.min() < 0 or labels.max() >= num_classes:
        raise _LabelOutOfRange(
            f"labels must be from 0 to {num_classes - 1}; they are {labels.tolist()}"
        )
