"""The batches of a rank, as datasets that can start at any batch."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from data_prep.records import tf_example
from resnet.config import phases
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.data import decoding, example_order
from resnet.data.augmentation import mixing, preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from resnet.data.corrupt_records import Replacements
from resnet.data.example_order import ClassOrder
from resnet.data.record_files import ExampleShard, RecordFiles, read_example, read_image

PREFETCHED_BATCHES = 2

# AutoGraph has nothing to convert here; its search would take most of the building.
as_written = tf.autograph.experimental.do_not_convert


class ToRead(NamedTuple):
    """What to read for a batch or, as scalars, for one example."""

    examples: tf.Tensor  # `[size]` int64.
    mask: tf.Tensor  # `[size]` bool; False where an example pads or replaces another.
    seeds: tf.Tensor  # Of their augmentation, `[size, 2]` int64.
    flips: tf.Tensor  # `[size]` bool; whether each is flipped if flips alternate.
    labels: tf.Tensor  # As in `Batch`.
    paths: tf.Tensor  # Of their files, `[size]` string.
    # Their offsets in bytes and, of images in place, their bytes and checksums:
    # `[size, 1]` or `[size, 3]` int64.
    places: tf.Tensor


class Batch(NamedTuple):
    """The examples of a batch."""

    # `[batch, image_size, image_size, 3]` float32; for evaluation with five crops
    # `[batch, 5, image_size, image_size, 3]`.
    images: tf.Tensor
    # The class of each example, `[batch]` int32, or which labels it has, `[batch,
    # num_classes]` uint8 (`data_prep.records.labels`).
    labels: tf.Tensor
    examples: tf.Tensor  # That were read, `[batch]` int64.
    # `[batch]` bool; False where an example replaces a corrupt one or pads the last
    # batch.
    mask: tf.Tensor
    # The weight of each example's own label, `[batch]` float32, from 0 to 1; that of
    # its partner's label is 1 - mix_weight (`mixing`).
    mix_weight: tf.Tensor


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a rank reads in training, and how."""

    shard: ExampleShard  # The examples, and the ranks that divide them.
    phases: Sequence[Phase]  # Of the run, whose last step has the last batch.
    local_batch_size: int  # The number of examples of one rank in one step.
    num_parallel_calls: int  # The number of images decoded at the same time.
    seed: int = 0  # Of the order of the examples and of their augmentation.
    accumulation_steps: int = 1  # The number of micro-batches of a rank in each step.
    normalization: Normalization = preprocessing.IMAGENET
    on_bad_record: str = "fail"  # Or "skip", as `CorruptRecords` takes it.
    # The size of the cache of decoded images in units of 10**6 bytes; 0 for no cache.
    decoded_cache_mb: int = 0
    classes: ClassOrder | None = None  # None for natural sampling.

    @classmethod
    def of_run(
        cls,
        config: Config,
        shard: ExampleShard,
        num_ranks: int,
        num_parallel_calls: int,
    ) -> "Reading":
        """Returns what one of all `num_ranks` ranks reads in a run."""
        classes = None
        if config.sampling != "natural":
            classes = ClassOrder.of(shard.records.labels, config.sampling)
        return cls(
            classes=classes,
            shard=shard,
            phases=config.phases,
            local_batch_size=config.global_batch_size // num_ranks,
            num_parallel_calls=num_parallel_calls,
            seed=config.seed,
            accumulation_steps=config.accumulation_steps,
            normalization=Normalization.of_run(config),
            on_bad_record=config.on_bad_record,
            decoded_cache_mb=config.decoded_cache_mb,
        )


def train_batches(
    reading: Reading,
    start_micro_batch: int,
    replacements: Replacements,
    cache: "DecodedCache | None" = None,
    chosen: np.ndarray | None = None,
) -> tf.data.Dataset:
    """Returns the micro-batches of a rank from `start_micro_batch` on.

    Micro-batch m belongs to step m // accumulation_steps and its phase. Nothing is read
    to get to `start_micro_batch`. Of these, only the `chosen` are returned, `[n]`
    int64, ascending; by default all.
    """
    examples_of = to_read(reading, replacements)
    datasets = []
    first_steps = phases.first_steps(reading.phases)
    for phase, first_step in zip(reading.phases, first_steps, strict=True):
        end = (first_step + phase.num_steps) * reading.accumulation_steps
        if start_micro_batch < end or phase is reading.phases[-1]:
            first = max(first_step * reading.accumulation_steps, start_micro_batch)
            numbers = tf.data.Dataset.range(first, end)
            if chosen is not None:
                is_here = (first <= chosen) & (chosen < end)
                numbers = tf.data.Dataset.from_tensor_slices(chosen[is_here])
            examples = numbers.map(examples_of)
            datasets.append(_batches_of_phase(examples, phase, reading, cache))
    return (
        functools.reduce(tf.data.Dataset.concatenate, datasets)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(options(reading.num_parallel_calls))
    )


def read_batch(what: ToRead, phase: Phase, reading: Reading) -> Batch:
    """Returns one micro-batch; to be called inside a graph, as workers do."""
    return (
        _batches_of_phase(tf.data.Dataset.from_tensors(what), phase, reading, None)
        .with_options(options(reading.num_parallel_calls))
        .get_single_element()
    )


def to_read(
    reading: Reading, replacements: Replacements
) -> Callable[[tf.Tensor], ToRead]:
    """Returns a function from the number of a micro-batch to what to read for it."""
    shard, records = reading.shard, reading.shard.records
    order = of_run(reading.seed, records.num_examples, reading.classes)
    location_of = _locations(records)
    number_of = tf.constant(records.number_of_example)

    @as_written
    def examples_of(micro_batch: tf.Tensor) -> ToRead:
        first, size = example_order.micro_batch_positions(
            micro_batch,
            reading.accumulation_steps,
            reading.local_batch_size * shard.num_ranks,
            shard.rank,
            shard.num_ranks,
        )
        positions = first + tf.range(size, dtype=tf.int64)
        example, key, use = order(positions)
        example, mask = replacements.replace(example)
        numbers = tf.gather(number_of, example)
        seeds = tf.stack([key, numbers], axis=1)
        flips = example_order.alternating_flips(numbers, reading.seed, use)
        return ToRead(example, mask, seeds, flips, *location_of(example))

    return examples_of


def _batches_of_phase(
    examples: tf.data.Dataset,
    phase: Phase,
    reading: Reading,
    cache: "DecodedCache | None",
) -> tf.data.Dataset:
    """Returns the `Batch`es of a phase, of a dataset of `ToRead`."""
    is_mixed = bool(phase.mixup or phase.cutmix)
    records = reading.shard.records

    @as_written
    def load(what: ToRead) -> Batch | tuple[Batch, tf.Tensor]:
        original = _load_image(records, cache, what)
        image = preprocessing.train_image(
            original,
            phase,
            what.seeds,
            reading.normalization,
            what.flips if phase.flips == "alternating" else None,
        )
        loaded = Batch(image, what.labels, what.examples, what.mask, tf.ones([]))
        return (loaded, what.seeds) if is_mixed else loaded

    @as_written
    def mix(batch: Batch, seeds: tf.Tensor) -> Batch:
        images, mix_weight = mixing.mix_pairs(
            batch.images, seeds, phase.mixup, phase.cutmix
        )
        return batch._replace(images=images, mix_weight=mix_weight)

    batches = (
        examples.unbatch()
        .map(load, num_parallel_calls=reading.num_parallel_calls, deterministic=True)
        .batch(
            reading.local_batch_size // reading.accumulation_steps, drop_remainder=True
        )
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
    classes: ClassOrder | None = None,
) -> np.ndarray:
    """Returns the examples of a micro-batch before any is replaced, `[size]` int64."""
    first, size = example_order.micro_batch_positions(
        micro_batch, accumulation_steps, local_batch_size * num_ranks, rank, num_ranks
    )
    position = first + np.arange(size)
    return example_order.examples_at(position, seed, num_examples, classes)[0]


def eval_batches(
    config: Config,
    shard: ExampleShard,
    batch_size: int,
    num_parallel_calls: int,
    num_crops: int,
    start_batch: int,
    replacements: Replacements,
) -> tf.data.Dataset:
    """Returns the examples that a rank evaluates, each once, from a batch on.

    `num_crops` is 1 for the central crop, or 5 for `preprocessing.five_crops`.
    """
    num_batches = -(-(shard.end_example - shard.first_example) // batch_size)
    examples_of = eval_to_read(shard, batch_size, replacements)
    examples = tf.data.Dataset.range(start_batch, num_batches).map(examples_of)
    return _evaluated(
        examples, shard.records, config, batch_size, num_parallel_calls, num_crops
    ).prefetch(PREFETCHED_BATCHES)


def eval_to_read(
    shard: ExampleShard, batch_size: int, replacements: Replacements
) -> Callable[[tf.Tensor], ToRead]:
    """Returns a function from the number of a batch to what to read for it.

    A batch that goes beyond the last example of the shard is padded with it.
    """
    first, end = shard.first_example, shard.end_example
    location_of = _locations(shard.records)

    @as_written
    def examples_of(batch: tf.Tensor) -> ToRead:
        positions = first + batch * batch_size + tf.range(batch_size, dtype=tf.int64)
        example, is_intact = replacements.replace(tf.minimum(positions, end - 1))
        mask = is_intact & (positions < end)
        seeds = tf.zeros([batch_size, 2], tf.int64)
        flips = tf.zeros([batch_size], tf.bool)
        return ToRead(example, mask, seeds, flips, *location_of(example))

    return examples_of


def read_eval_batch(
    what: ToRead,
    records: RecordFiles,
    config: Config,
    batch_size: int,
    num_parallel_calls: int,
) -> Batch:
    """Returns one batch of evaluation; to be called inside a graph, as workers do."""
    examples = tf.data.Dataset.from_tensors(what)
    return _evaluated(
        examples, records, config, batch_size, num_parallel_calls
    ).get_single_element()


def _evaluated(
    examples: tf.data.Dataset,
    records: RecordFiles,
    config: Config,
    batch_size: int,
    num_parallel_calls: int,
    num_crops: int = 1,
) -> tf.data.Dataset:
    """Returns the `Batch`es of evaluation, of a dataset of `ToRead`."""
    size, fraction = config.image_size, config.eval_crop_fraction
    normalization = Normalization.of_run(config)

    @as_written
    def load(what: ToRead) -> Batch:
        original = _load_image(records, None, what)
        if num_crops == 1:
            image = preprocessing.eval_image(
                original, size, fraction, config.eval_crop, normalization
            )
        else:
            image = preprocessing.five_crops(original, size, fraction, normalization)
        return Batch(image, what.labels, what.examples, what.mask, tf.ones([]))

    return (
        examples.unbatch()
        .map(load, num_parallel_calls=num_parallel_calls, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .with_options(options(num_parallel_calls))
    )


def _locations(
    records: RecordFiles,
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Returns a function from examples to their labels, paths of files and places."""
    index = records.index
    paths, files = tf.constant(records.paths), tf.constant(records.file_of_example)
    labels = tf.constant(records.labels)
    columns = ["offset", *["num_bytes", "crc32c"] * records.is_in_place]
    places = tf.constant(
        np.stack([index[name] for name in columns], 1).astype(np.int64)
    )
    names = None
    if records.is_in_place and index["name"].any():
        names = tf.constant(index["name"])

    def of(example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        path = tf.gather(paths, tf.gather(files, example))
        if names is not None:
            path = tf.strings.join([path, tf.gather(names, example)], "/")
        return tf.gather(labels, example), path, tf.gather(places, example)

    return of


def _load_image(
    records: RecordFiles, cache: "DecodedCache | None", what: ToRead
) -> tf.Tensor:
    """Returns an example's image, as `preprocessing` takes it."""
    # The op reads one integer beside the image; the labels are those of the index.
    integer_key = tf_example.WIDTH if records.multi_label else records.label_key

    def read() -> tf.Tensor:
        if records.is_in_place:
            encoded = read_image(what.paths, what.places)
        else:
            encoded, _ = read_example(
                what.paths, what.places[0], records.image_key, integer_key
            )
        original = decoding.original_of(encoded, records.image_format)
        return original if cache is None else decoding.decoded(original)

    return read() if cache is None else cache.get(what.examples, read)


class DecodedCache:
    """The images of one split, as many as the cache has room for."""

    def __init__(self, megabytes: int) -> None:
        """Makes an empty cache for this rank, of units of 10**6 bytes."""
        self._max_bytes = megabytes * 10**6
        self._num_bytes = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._images = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.string, default_value=""
        )

    def get(self, example: tf.Tensor, load: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Returns the image of an example, `[height, width, 3]` uint8.

        `load` returns that of an example that the cache doesn't hold. Functions of a
        dataset call this, in any number of threads.
        """
        cached = self._images.lookup(example)

        def load_and_insert() -> tf.Tensor:
            image = load()
            serialized = tf.io.serialize_tensor(image)
            num_bytes = tf.cast(tf.strings.length(serialized), tf.int64)

            def insert() -> tf.Tensor:
                inserted = self._images.insert(example, serialized)
                with tf.control_dependencies([inserted]):
                    return tf.identity(num_bytes)

            def release() -> tf.Tensor:
                return tf.identity(self._num_bytes.assign_sub(num_bytes))

            # The bytes are reserved before the comparison: concurrent threads count
            # each other's reservations and never exceed the size together.
            reserved = self._num_bytes.assign_add(num_bytes)
            done = tf.cond(reserved <= self._max_bytes, insert, release)
            with tf.control_dependencies([done]):
                return tf.identity(image)

        def parse() -> tf.Tensor:
            image = tf.io.parse_tensor(cached, tf.uint8)
            return tf.ensure_shape(image, (None, None, 3))

        return tf.cond(tf.strings.length(cached) > 0, parse, load_and_insert)


def options(num_threads: int) -> tf.data.Options:
    """Returns options for a dataset with threads of its own and without autotuning."""
    result = tf.data.Options()
    result.threading.private_threadpool_size = num_threads
    result.threading.max_intra_op_parallelism = 1
    result.autotune.enabled = False
    return result


_AUGMENTATION_STREAM = 1000  # For `mix_seed`; the streams of the order are lower.


@functools.lru_cache(maxsize=16)
def of_run(
    seed: int, num_examples: int, classes: ClassOrder | None = None
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Returns the order of a run as a function that is traced once.

    It takes positions of the run and returns the examples there, their keys for the
    augmentation and the numbers of their uses, all `[n]` int64.
    """

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
    def order(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        example, use = example_order.examples_at(
            position, seed, num_examples, classes, _TENSORFLOW
        )
        return example, example_order.mix_seed(seed, _AUGMENTATION_STREAM, use), use

    return order


def _walk(
    x: tf.Tensor, keys: tf.Tensor, ab: tuple[Any, Any], num_examples: Any
) -> tf.Tensor:
    def shuffle(x: tf.Tensor, is_due: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        again = example_order.shuffle_once(x, tf.unstack(keys), ab)
        x = tf.where(is_due, again, x)
        return x, x >= num_examples

    return tf.while_loop(
        lambda x, is_due: tf.reduce_any(is_due), shuffle, (x, tf.ones_like(x, tf.bool))
    )[0]


_TENSORFLOW = example_order.ArrayFunctions(
    walk=_walk,
    take=lambda values, indices: tf.gather(tf.constant(values), indices),
    search=lambda ends, x: tf.searchsorted(tf.constant(ends), x, side="right"),
)
