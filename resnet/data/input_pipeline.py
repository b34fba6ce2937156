"""The batches of a rank, as datasets that begin at any batch."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from resnet import phases
from resnet.data import example_order, mixing, preprocessing
from resnet.data.corrupt_records import Replacements
from resnet.data.decoded_cache import DecodedCache
from resnet.data.record_files import RecordFiles, read_example
from resnet.phases import Phase

PREFETCHED_BATCHES = 2
_AUGMENTATION_STREAM = 1000  # Of `mix_seed`, beyond those of the order.


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        images: `[batch, image_size, image_size, 3]` float32; five crops of each where
            evaluation asks for them: `[batch, 5, image_size, image_size, 3]`.
        labels: `[batch]` int32, from 0 if they are what they should be.
        examples: `[batch]` int64, which were really read.
        mask: `[batch]` bool; False where an example only fills the place of another
            one, which is damaged or isn't there.
        mix_weight: `[batch]` float32, from 0 to 1; what isn't its own label's share of
            a mixed example is that of the other example of its pair.
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
    start_part: int,
    num_parallel_calls: int,
    replacements: Replacements,
    cache: DecodedCache | None,
) -> tf.data.Dataset:
    """Returns a rank's part of each global batch, in parts, from `start_part` on.

    A step has `accumulation_steps` parts, each an element: part p is of step
    p // accumulation_steps. Each is as the phase of its step has it. Nothing is read to
    get to `start_part`.

    Args:
        records: What these ranks train on.
        run_phases: The phases of the run, which end with its last step.
        seed: The seed of the order of the examples and of their augmentation.
        accumulation_steps: The number of parts of a step.
        rank: From 0, of the ranks that share `records`.
        num_ranks: Ranks that share `records`.
        local_batch_size: Examples of each rank in each step, all parts together.
        start_part: First part to return; the last is that of the run's last step.
        num_parallel_calls: Pictures that are decoded at the same time.
        replacements: For damaged records.
        cache: Where decoded pictures are kept, if they are.
    """
    num_parts = accumulation_steps
    num_examples = records.num_examples
    places = _Places(records)

    # What needs only arithmetic is done for a whole part at a time.
    def examples_of_part(part: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first, part_size = example_order.part_positions(
            part, num_parts, local_batch_size * num_ranks, rank, num_ranks
        )
        position = first + tf.range(part_size, dtype=tf.int64)
        epoch = position // num_examples
        example = _shuffled(position % num_examples, seed, epoch, num_examples)
        example, mask = replacements.replace(example)
        key = example_order.mix_seed(seed, _AUGMENTATION_STREAM, epoch)
        seeds = tf.stack([key, places.numbers(example)], axis=1)
        return example, mask, seeds, *places.of(example)

    of_phases = []
    for phase, first_step in zip(
        run_phases, phases.first_steps(run_phases), strict=True
    ):
        end_part = (first_step + phase.num_steps) * num_parts
        if start_part < end_part or phase is run_phases[-1]:
            first_part = max(first_step * num_parts, start_part)
            examples = tf.data.Dataset.range(first_part, end_part).map(examples_of_part)
            of_phases.append(
                _batches_of_phase(
                    examples,
                    phase,
                    records,
                    local_batch_size // num_parts,
                    num_parallel_calls,
                    cache,
                )
            )
    return (
        functools.reduce(tf.data.Dataset.concatenate, of_phases)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(options(num_parallel_calls))
    )


def _batches_of_phase(
    examples: tf.data.Dataset,
    phase: Phase,
    records: RecordFiles,
    batch_size: int,
    num_parallel_calls: int,
    cache: DecodedCache | None,
) -> tf.data.Dataset:
    """Returns the `Batch`es of a phase.

    Args:
        examples: What to read: vectors of the examples' numbers, whether each is the
            one that was asked for, their seeds (int64 `[2]`), paths and offsets.
        phase: The phase.
        records: What `examples` are of.
        batch_size: Examples of each element.
        num_parallel_calls: Pictures that are decoded at the same time.
        cache: Where decoded pictures are kept, if they are.
    """
    is_mixed = bool(phase.mixup or phase.cutmix)

    def load(
        example: tf.Tensor,
        mask: tf.Tensor,
        seed: tf.Tensor,
        path: tf.Tensor,
        offset: tf.Tensor,
    ) -> Batch | tuple[Batch, tf.Tensor]:
        picture, label = _load(records, cache, example, path, offset)
        image = preprocessing.train_image(
            picture,
            phase.image_size,
            phase.augmentation,
            seed,
            phase.smallest_crop,
            phase.random_augment,
        )
        one = Batch(image, label, example, mask, tf.ones([]))
        return (one, seed) if is_mixed else one

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


def examples_of_batch(
    part: int,
    seed: int,
    rank: int,
    num_ranks: int,
    local_batch_size: int,
    num_examples: int,
    num_parts: int = 1,
) -> np.ndarray:
    """Returns the examples of a rank's part of a global batch, int64, none replaced.

    The arguments are as for `train_batches`; `num_parts` is `accumulation_steps`, and
    with one part to a step `part` is the step.
    """
    first, part_size = example_order.part_positions(
        part, num_parts, local_batch_size * num_ranks, rank, num_ranks
    )
    position = first + np.arange(part_size)
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
) -> tf.data.Dataset:
    """Returns the examples from `first_example` to `end_example - 1`, each once.

    The last batch is filled up with the last example.

    Args:
        records: The split.
        image_size: The height and width of the images, in pixels.
        crop: How the middle is cropped, a name of `setting_bounds.EVAL_CROPS`.
        crop_fraction: The share of the shorter side that the middle crop takes.
        first_example: First example, in the order of the files.
        end_example: First example no longer returned; more than `first_example`.
        batch_size: Examples of each element.
        start_batch: First batch to return.
        num_parallel_calls: Pictures that are decoded at the same time.
        replacements: For damaged records.
        num_crops: 1, the middle of each picture, or `preprocessing.five_crops`.
    """
    num_batches = -(-(end_example - first_example) // batch_size)
    places = _Places(records)

    def load(position: tf.Tensor) -> Batch:
        example, is_whole = replacements.replace(tf.minimum(position, end_example - 1))
        picture, label = _load(records, None, example, *places.of(example))
        if num_crops == 1:
            image = preprocessing.eval_image(picture, image_size, crop_fraction, crop)
        else:
            image = preprocessing.five_crops(picture, image_size, crop_fraction)
        mask = is_whole & (position < end_example)
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
