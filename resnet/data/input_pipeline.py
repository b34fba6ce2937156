"""The batches of a rank, as datasets that can start at any batch."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from resnet.config import phases
from resnet.config.phases import Phase
from resnet.data import example_order
from resnet.data.augmentation import mixing, preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from resnet.data.corrupt_records import Replacements
from resnet.data.decoded_cache import DecodedCache
from resnet.data.record_files import RecordFiles, read_example

PREFETCHED_BATCHES = 2

# There are no `if` and `while` on tensors here for AutoGraph to convert, and its search
# for them would take most of the time in which a pipeline is built.
as_written = tf.autograph.experimental.do_not_convert


class ToRead(NamedTuple):
    """What to read for a micro-batch, a vector each.

    Attributes:
        examples: The examples, `[size]` int64.
        mask: `[size]` bool; False where an example replaces a corrupt one.
        seeds: The seeds of their augmentation, `[size, 2]` int64.
        flips: `[size]` bool; whether each is flipped if flips alternate.
        paths: The paths of their record files, `[size]` string.
        offsets: Their offsets in these files in bytes, `[size]` int64.
    """

    examples: tf.Tensor
    mask: tf.Tensor
    seeds: tf.Tensor
    flips: tf.Tensor
    paths: tf.Tensor
    offsets: tf.Tensor


class Batch(NamedTuple):
    """The examples of a batch.

    Attributes:
        images: The images, `[batch, image_size, image_size, 3]` float32; for evaluation
            with five crops `[batch, 5, image_size, image_size, 3]`.
        labels: The labels, `[batch]` int32, from 0 if the data set is correct.
        examples: The examples that were read, `[batch]` int64.
        mask: `[batch]` bool; False where an example replaces a corrupt one or pads the
            last batch.
        mix_weight: The weight of each example's own label, `[batch]` float32, from 0 to
            1; 1 - mix_weight is the weight of its partner's label (`mixing`).
    """

    images: tf.Tensor
    labels: tf.Tensor
    examples: tf.Tensor
    mask: tf.Tensor
    mix_weight: tf.Tensor


def train_batches(
    records: RecordFiles,
    run_phases: Sequence[Phase],
    *,
    seed: int,
    accumulation_steps: int,
    rank: int,
    num_ranks: int,
    local_batch_size: int,
    start_micro_batch: int,
    num_parallel_calls: int,
    replacements: Replacements,
    cache: DecodedCache | None,
    normalization: Normalization = preprocessing.IMAGENET,
) -> tf.data.Dataset:
    """Returns the micro-batches of a rank from `start_micro_batch` on.

    A step has `accumulation_steps` micro-batches, each of them an element: micro-batch
    m belongs to step m // accumulation_steps and is made with the settings of the phase
    of this step. Nothing is read to get to `start_micro_batch`.

    Args:
        records: The examples that these ranks train on.
        run_phases: The phases of the run, which end with its last step.
        seed: The seed of the order of the examples and of their augmentation.
        accumulation_steps: The number of micro-batches of a rank in each step.
        rank: The number of this rank, from 0, among the ranks that share `records`.
        num_ranks: The number of ranks that share `records`.
        local_batch_size: The number of examples of one rank in one step.
        start_micro_batch: The number of the first micro-batch; the last one belongs to
            the last step of the run.
        num_parallel_calls: The number of images that are decoded at the same time.
        replacements: The replacements of corrupt records.
        cache: The cache of decoded images, or None.
        normalization: The mean and standard deviation of the images.
    """
    examples_of = to_read(
        records,
        seed,
        accumulation_steps,
        rank,
        num_ranks,
        local_batch_size,
        replacements,
    )
    datasets = []
    first_steps = phases.first_steps(run_phases)
    for phase, first_step in zip(run_phases, first_steps, strict=True):
        end = (first_step + phase.num_steps) * accumulation_steps
        if start_micro_batch < end or phase is run_phases[-1]:
            first = max(first_step * accumulation_steps, start_micro_batch)
            datasets.append(
                batches_of_phase(
                    tf.data.Dataset.range(first, end).map(examples_of),
                    phase,
                    records,
                    local_batch_size // accumulation_steps,
                    num_parallel_calls,
                    cache,
                    normalization,
                )
            )
    return (
        functools.reduce(tf.data.Dataset.concatenate, datasets)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(options(num_parallel_calls))
    )


def to_read(
    records: RecordFiles,
    seed: int,
    accumulation_steps: int,
    rank: int,
    num_ranks: int,
    local_batch_size: int,
    replacements: Replacements,
) -> Callable[[tf.Tensor], ToRead]:
    """Returns a function from the number of a micro-batch to what to read for it.

    The function computes a whole micro-batch at a time, since it needs only arithmetic.
    The arguments are as for `train_batches`.
    """
    order = of_run(seed, records.num_examples)
    locations = _Locations(records)

    @as_written
    def examples_of(micro_batch: tf.Tensor) -> ToRead:
        first, size = example_order.micro_batch_positions(
            micro_batch,
            accumulation_steps,
            local_batch_size * num_ranks,
            rank,
            num_ranks,
        )
        positions = first + tf.range(size, dtype=tf.int64)
        example, key = order(positions)
        example, mask = replacements.replace(example)
        numbers = locations.numbers(example)
        seeds = tf.stack([key, numbers], axis=1)
        epochs = positions // records.num_examples
        flips = example_order.alternating_flips(numbers, seed, epochs)
        return ToRead(example, mask, seeds, flips, *locations.of(example))

    return examples_of


def batches_of_phase(
    examples: tf.data.Dataset,
    phase: Phase,
    records: RecordFiles,
    batch_size: int,
    num_parallel_calls: int,
    cache: DecodedCache | None,
    normalization: Normalization,
) -> tf.data.Dataset:
    """Returns the `Batch`es of a phase.

    Args:
        examples: A dataset of what to read, `ToRead`.
        phase: The phase.
        records: The split or part of it that `examples` belong to.
        batch_size: The number of examples of each element of the result.
        num_parallel_calls: The number of images that are decoded at the same time.
        cache: The cache of decoded images, or None.
        normalization: The mean and standard deviation of the images.
    """
    is_mixed = bool(phase.mixup or phase.cutmix)

    @as_written
    def load(what: ToRead) -> Batch | tuple[Batch, tf.Tensor]:
        example, mask, seed, flip, path, offset = what
        original, label = load_example(records, cache, example, path, offset)
        image = preprocessing.train_image(
            original,
            phase.image_size,
            phase.augmentation,
            seed,
            phase.min_crop_area,
            phase.random_augment,
            normalization,
            phase.shift_fraction,
            flip if phase.flips == "alternating" else None,
        )
        loaded = Batch(image, label, example, mask, tf.ones([]))
        return (loaded, seed) if is_mixed else loaded

    @as_written
    def mix(batch: Batch, seeds: tf.Tensor) -> Batch:
        images, mix_weight = mixing.mix_pairs(
            batch.images, seeds, phase.mixup, phase.cutmix
        )
        return batch._replace(images=images, mix_weight=mix_weight)

    batches = (
        examples.unbatch()
        .map(load, num_parallel_calls=num_parallel_calls, deterministic=True)
        .batch(batch_size, drop_remainder=True)
    )
    return batches.map(mix) if is_mixed else batches


def examples_of_micro_batch(
    micro_batch: int,
    seed: int,
    rank: int,
    num_ranks: int,
    local_batch_size: int,
    num_examples: int,
    accumulation_steps: int = 1,
) -> np.ndarray:
    """Returns the examples of a micro-batch before any is replaced, `[size]` int64.

    With one micro-batch per step, `micro_batch` is the step.

    Args:
        micro_batch: The number of the micro-batch, from 0.
        seed: The seed of the order of the examples.
        rank: The number of the rank, from 0, among the ranks that share the examples.
        num_ranks: The number of ranks that share the examples.
        local_batch_size: The number of examples of one rank in one step.
        num_examples: The number of examples in an epoch.
        accumulation_steps: The number of micro-batches of a rank in each step.
    """
    first, size = example_order.micro_batch_positions(
        micro_batch, accumulation_steps, local_batch_size * num_ranks, rank, num_ranks
    )
    position = first + np.arange(size)
    return example_order.shuffled(
        position % num_examples, seed, position // num_examples, num_examples
    )


def eval_batches(
    records: RecordFiles,
    *,
    image_size: int,
    crop: str,
    crop_fraction: float,
    first_example: int,
    end_example: int,
    batch_size: int,
    start_batch: int,
    num_parallel_calls: int,
    replacements: Replacements,
    num_crops: int = 1,
    normalization: Normalization = preprocessing.IMAGENET,
) -> tf.data.Dataset:
    """Returns the examples from `first_example` to `end_example - 1`, each once.

    The last batch is padded with the last example.

    Args:
        records: The split or a part of it.
        image_size: The height and width of the images, in pixels.
        crop: The order of the central crop and the resizing, as
            `preprocessing.eval_image` takes it.
        crop_fraction: The side of the central crop as a fraction of the shorter side.
        first_example: The first example, in the order of the files.
        end_example: The example after the last one; greater than `first_example`.
        batch_size: The number of examples of each element.
        start_batch: The number of the first batch to return, from 0.
        num_parallel_calls: The number of images that are decoded at the same time.
        replacements: The replacements of corrupt records.
        num_crops: 1 for the central crop of each image, or 5 for
            `preprocessing.five_crops`.
        normalization: The mean and standard deviation of the images.
    """
    num_batches = -(-(end_example - first_example) // batch_size)
    locations = _Locations(records)

    @as_written
    def load(position: tf.Tensor) -> Batch:
        padded = tf.minimum(position, end_example - 1)
        example, is_intact = replacements.replace(padded)
        original, label = load_example(records, None, example, *locations.of(example))
        if num_crops == 1:
            image = preprocessing.eval_image(
                original, image_size, crop_fraction, crop, normalization
            )
        else:
            image = preprocessing.five_crops(
                original, image_size, crop_fraction, normalization
            )
        mask = is_intact & (position < end_example)
        return Batch(image, label, example, mask, tf.ones([]))

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


class _Locations:
    """The locations of the examples, as tensors that functions of a dataset share."""

    def __init__(self, records: RecordFiles) -> None:
        self._paths = tf.constant(records.paths)
        self._files = tf.constant(records.file_of_example)
        self._offsets = tf.constant(records.offset_of_example)
        self._numbers = tf.constant(records.number_of_example)

    def of(self, example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the paths and offsets of examples, int64 of any shape."""
        path = tf.gather(self._paths, tf.gather(self._files, example))
        return path, tf.gather(self._offsets, example)

    def numbers(self, example: tf.Tensor) -> tf.Tensor:
        """Returns the indices of examples in the whole split, int64."""
        return tf.gather(self._numbers, example)


def load_example(
    records: RecordFiles,
    cache: DecodedCache | None,
    example: tf.Tensor,
    path: tf.Tensor,
    offset: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an example's image, as `preprocessing` takes it, and its label.

    The label counts from 0 and is an int32.
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

    original, label = read() if cache is None else cache.get(example, read)
    return original, tf.cast(label - records.first_label, tf.int32)


def options(num_threads: int) -> tf.data.Options:
    """Returns options for a dataset with threads of its own and without autotuning.

    Args:
        num_threads: The number of threads.
    """
    result = tf.data.Options()
    result.threading.private_threadpool_size = num_threads
    result.threading.max_intra_op_parallelism = 1
    result.autotune.enabled = False
    return result


_AUGMENTATION_STREAM = 1000  # For `mix_seed`; the streams of the order are lower.


@functools.lru_cache(maxsize=16)
def of_run(
    seed: int, num_examples: int
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns the order of a run as a function that is traced once.

    All phases share it, and all datasets that are built again after corrupt records.

    Args:
        seed: The seed of the run.
        num_examples: The number of examples in an epoch.

    Returns:
        A function from positions of the run, `[n]` int64, to the examples there and to
        their keys for the augmentation, both `[n]` int64.
    """

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
    def order(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        epoch = position // num_examples
        example = _shuffled(position % num_examples, seed, epoch, num_examples)
        return example, example_order.mix_seed(seed, _AUGMENTATION_STREAM, epoch)

    return order


def _shuffled(
    position_in_epoch: tf.Tensor, seed: int, epoch: tf.Tensor, num_examples: int
) -> tf.Tensor:
    """Returns what `example_order.shuffled` returns, for tensors inside a graph."""
    keys = tf.unstack(example_order.round_keys(seed, epoch))

    def shuffle(x: tf.Tensor, is_due: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        again = example_order.shuffle_once(x, keys, num_examples)
        x = tf.where(is_due, again, x)
        return x, x >= num_examples

    return tf.while_loop(
        lambda x, is_due: tf.reduce_any(is_due),
        shuffle,
        (position_in_epoch, tf.ones_like(position_in_epoch, tf.bool)),
    )[0]
