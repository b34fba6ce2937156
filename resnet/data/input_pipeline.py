"""The batches of a rank, as datasets that begin at any batch."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from resnet.config import Config
from resnet.data import example_order, preprocessing
from resnet.data.damaged_records import StandIns
from resnet.data.decoded_cache import DecodedCache
from resnet.data.record_files import RecordFiles, read_example

PREFETCHED_BATCHES = 2
_AUGMENTATION_STREAM = 1000  # Of `mix_seed`, beyond those of the order.


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        images: `[batch, image_size, image_size, 3]` float32.
        labels: `[batch]` int32, from 0 if they are what they should be.
        examples: `[batch]` int64, which were really read.
        is_real: `[batch]` bool; False where an example only fills the place of another
            one, which is damaged or isn't there.
    """

    images: tf.Tensor
    labels: tf.Tensor
    examples: tf.Tensor
    is_real: tf.Tensor


def train_batches(
    records: RecordFiles,
    config: Config,
    rank: int,
    num_ranks: int,
    local_batch_size: int,
    start_step: int,
    num_parallel_calls: int,
    stand_ins: StandIns,
    cache: DecodedCache | None,
) -> tf.data.Dataset:
    """Returns a rank's part of each global batch from `start_step` on.

    Nothing is read to get to `start_step`.

    Args:
        records: What these ranks train on.
        config: The run's settings.
        rank: From 0, of the ranks that share `records`.
        num_ranks: Ranks that share `records`.
        local_batch_size: Examples of each rank in each step.
        start_step: First global batch to return; the last is `config.train_steps - 1`.
        num_parallel_calls: Pictures that are decoded at the same time.
        stand_ins: For damaged records.
        cache: Where decoded pictures are kept, if they are.
    """
    num_examples = records.num_examples
    places = _Places(records)

    # What needs only arithmetic is done for a whole batch at a time.
    def examples_of_step(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first, _ = example_order.slice_positions(
            step, local_batch_size * num_ranks, rank, num_ranks
        )
        position = first + tf.range(local_batch_size, dtype=tf.int64)
        epoch = position // num_examples
        example = _shuffled(position % num_examples, config.seed, epoch, num_examples)
        example, is_real = stand_ins.replace(example)
        key = example_order.mix_seed(config.seed, _AUGMENTATION_STREAM, epoch)
        seed = tf.stack([key, places.numbers(example)], axis=1)
        return example, is_real, seed, *places.of(example)

    def load(
        example: tf.Tensor,
        is_real: tf.Tensor,
        seed: tf.Tensor,
        path: tf.Tensor,
        offset: tf.Tensor,
    ) -> Batch:
        picture, label = _load(records, cache, example, path, offset)
        image = preprocessing.train_image(
            picture, config.image_size, config.augmentation, seed
        )
        return Batch(image, label, example, is_real)

    return (
        tf.data.Dataset.range(start_step, config.train_steps)
        .map(examples_of_step)
        .unbatch()
        .map(load, num_parallel_calls=num_parallel_calls, deterministic=True)
        .batch(local_batch_size, drop_remainder=True)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(options(num_parallel_calls))
    )


def examples_of_batch(
    step: int,
    seed: int,
    rank: int,
    num_ranks: int,
    local_batch_size: int,
    num_examples: int,
) -> np.ndarray:
    """Returns the examples of a rank's part of a global batch, int64, none replaced.

    The arguments are as for `train_batches`.
    """
    first, _ = example_order.slice_positions(
        step, local_batch_size * num_ranks, rank, num_ranks
    )
    position = first + np.arange(local_batch_size)
    return example_order.shuffled(
        position % num_examples, seed, position // num_examples, num_examples
    )


def eval_batches(
    records: RecordFiles,
    config: Config,
    first_example: int,
    end_example: int,
    batch_size: int,
    start_batch: int,
    num_parallel_calls: int,
    stand_ins: StandIns,
) -> tf.data.Dataset:
    """Returns the examples from `first_example` to `end_example - 1`, each once.

    The last batch is filled up with the last example.

    Args:
        records: The split.
        config: The run's settings: how pictures are cropped, and to which size.
        first_example: First example, in the order of the files.
        end_example: First example no longer returned; more than `first_example`.
        batch_size: Examples of each element.
        start_batch: First batch to return.
        num_parallel_calls: Pictures that are decoded at the same time.
        stand_ins: For damaged records.
    """
    num_batches = -(-(end_example - first_example) // batch_size)
    places = _Places(records)

    def load(position: tf.Tensor) -> Batch:
        example, is_whole = stand_ins.replace(tf.minimum(position, end_example - 1))
        picture, label = _load(records, None, example, *places.of(example))
        image = preprocessing.eval_image(
            picture, config.image_size, config.eval_crop_fraction, config.eval_crop
        )
        return Batch(image, label, example, is_whole & (position < end_example))

    return (
        tf.data.Dataset.range(
            first_example + start_batch * batch_size,
            first_example + num_batches * batch_size,
        )
        .map(load, num_parallel_calls=num_parallel_calls, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(options(num_parallel_calls))
    )


class _Places:
    """Where the examples lie, as tensors that functions of a dataset share."""

    def __init__(self, records: RecordFiles) -> None:
        self._paths = tf.constant(records.paths)
        self._files = tf.constant(records.file_of_example)
        self._offsets = tf.constant(records.offset_of_example)
        self._numbers = tf.constant(records.number_of_example)

    def of(self, example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns paths and offsets of examples, int64 of any shape."""
        path = tf.gather(self._paths, tf.gather(self._files, example))
        return path, tf.gather(self._offsets, example)

    def numbers(self, example: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of examples in the whole split."""
        return tf.gather(self._numbers, example)


def _load(
    records: RecordFiles,
    cache: DecodedCache | None,
    example: tf.Tensor,
    path: tf.Tensor,
    offset: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an example's picture, as `preprocessing` takes it, and its label.

    The label is from 0, int32.
    """

    def read() -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = read_example(
            path, offset, records.image_key, records.label_key
        )
        if records.image_format == "png":
            return tf.io.decode_png(encoded, channels=3), label
        if cache is not None:
            return tf.io.decode_jpeg(encoded, channels=3), label
        return encoded, label

    picture, label = read() if cache is None else cache.get(example, read)
    return picture, tf.cast(label - records.first_label, tf.int32)


def _shuffled(
    position_in_epoch: tf.Tensor, seed: int, epoch: tf.Tensor, num_examples: int
) -> tf.Tensor:
    """Returns what `example_order.shuffled` does, of tensors and inside a graph."""

    def shuffle(x: tf.Tensor, is_due: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        once_more = example_order.shuffle_once(x, seed, epoch, num_examples)
        x = tf.where(is_due, once_more, x)
        return x, x >= num_examples

    return tf.while_loop(
        lambda x, is_due: tf.reduce_any(is_due),
        shuffle,
        (position_in_epoch, tf.ones_like(position_in_epoch, tf.bool)),
    )[0]


def options(num_threads: int) -> tf.data.Options:
    """Returns options that give a dataset its own threads and nothing automatic."""
    result = tf.data.Options()
    result.threading.private_threadpool_size = num_threads
    result.threading.max_intra_op_parallelism = 1
    result.autotune.enabled = False
    return result
