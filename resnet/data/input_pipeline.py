"""The batches of a rank, as datasets that begin at any step."""

import tensorflow as tf

from resnet.config import Config
from resnet.data import example_order, preprocessing
from resnet.data.record_files import RecordFiles, read_example

PREFETCHED_BATCHES = 2
_AUGMENTATION_STREAM = 1000  # Of `mix_seed`, beyond those of the order.


def train_batches(
    records: RecordFiles,
    config: Config,
    rank: int,
    num_ranks: int,
    start_step: int,
    num_parallel_calls: int,
) -> tf.data.Dataset:
    """Returns a rank's part of each global batch from `start_step` on.

    The elements are images `[local_batch, image_size, image_size, 3]` float32 and
    labels `[local_batch]` int32 from 0. Nothing is read to get to `start_step`.

    Args:
        records: The training split.
        config: The run's settings.
        rank: From 0.
        num_ranks: Ranks that share each batch, evenly.
        start_step: First global batch to return; the last is `config.train_steps - 1`.
        num_parallel_calls: Pictures that are decoded at the same time.
    """
    num_examples = records.num_examples
    paths = tf.constant(records.paths)
    files = tf.constant(records.file_of_example)
    offsets = tf.constant(records.offset_of_example)

    def examples_of_step(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first, local_batch_size = example_order.slice_positions(
            step, config.global_batch_size, rank, num_ranks
        )
        position = first + tf.range(local_batch_size, dtype=tf.int64)
        epoch = position // num_examples
        example = _shuffled(position % num_examples, config.seed, epoch, num_examples)
        return epoch, example

    def load(epoch: tf.Tensor, example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = read_example(paths[files[example]], offsets[example])
        key = example_order.mix_seed(config.seed, _AUGMENTATION_STREAM, epoch)
        image = preprocessing.train_image(
            encoded, config.image_size, config.augmentation, tf.stack([key, example])
        )
        return image, tf.cast(label - records.first_label, tf.int32)

    return (
        tf.data.Dataset.range(start_step, config.train_steps)
        .map(examples_of_step)
        .unbatch()
        .map(load, num_parallel_calls=num_parallel_calls, deterministic=True)
        .batch(config.global_batch_size // num_ranks, drop_remainder=True)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(_options(num_parallel_calls))
    )


def eval_batches(
    records: RecordFiles,
    image_size: int,
    crop_fraction: float,
    first_example: int,
    end_example: int,
    batch_size: int,
    num_parallel_calls: int,
) -> tf.data.Dataset:
    """Returns the examples from `first_example` to `end_example - 1`, each once.

    The elements are images, labels, and `is_real` `[batch_size]` bool: the last batch
    is filled up, and False marks what fills it.

    Args:
        records: The split.
        image_size: Side of the images in pixels.
        crop_fraction: As `preprocessing.eval_image` takes it.
        first_example: First example, in the order of the files.
        end_example: First example no longer returned; more than `first_example`.
        batch_size: Examples of each element.
        num_parallel_calls: Pictures that are decoded at the same time.
    """
    paths = tf.constant(records.paths)
    files = tf.constant(records.file_of_example)
    offsets = tf.constant(records.offset_of_example)
    num_batches = -(-(end_example - first_example) // batch_size)

    def load(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        example = tf.minimum(position, end_example - 1)
        encoded, label = read_example(paths[files[example]], offsets[example])
        image = preprocessing.eval_image(encoded, image_size, crop_fraction)
        label = tf.cast(label - records.first_label, tf.int32)
        return image, label, position < end_example

    return (
        tf.data.Dataset.range(first_example, first_example + num_batches * batch_size)
        .map(load, num_parallel_calls=num_parallel_calls, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(_options(num_parallel_calls))
    )


def _shuffled(
    position_in_epoch: tf.Tensor, seed: int, epoch: tf.Tensor, num_examples: int
) -> tf.Tensor:
    """Returns what `example_order.shuffled` does, of tensors and inside a graph."""

    def once(x: tf.Tensor) -> tf.Tensor:
        return example_order.shuffle_once(x, seed, epoch, num_examples)

    return tf.while_loop(
        lambda x: tf.reduce_any(x >= num_examples),
        lambda x: (tf.where(x >= num_examples, once(x), x),),
        (once(position_in_epoch),),
    )[0]


def _options(num_threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.threading.private_threadpool_size = num_threads
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    return options
