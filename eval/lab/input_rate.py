"""Measures how many images per second one core reads, decodes and resizes.

python eval/lab/input_rate.py --data_dir=RECORDS
python eval/lab/input_rate.py --data_dir=RECORDS --image_size=128

Four pipelines alternate: "plain tf.data" makes the same images from
TFRecordDataset, decode_and_crop_jpeg and other stock ops; "sequential" combines
TFRecordDataset with this project's preprocessing; "random order" is this
project's training input, which reads single records in random order; "February
2018" is the same with the augmentation random_resized_crop_2018_02, which
decodes whole images. Prints the images per second of processor time of each
pipeline, and their ratios.
"""

import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from data_prep.records import manifest
from eval.benchmarking.jobs import spread
from resnet.base import cli, program
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting
from resnet.config.config import Config

if TYPE_CHECKING:
    import tensorflow as tf

    from resnet.data.batches import Batches
    from resnet.data.record_files import RecordFiles

BATCH_SIZE = 20
_WINDOW = {
    "min_object_covered": 0.1,
    "aspect_ratio_range": (3 / 4, 4 / 3),
    "area_range": (0.08, 1.0),
    "max_attempts": 10,
    "use_image_if_no_bounding_boxes": True,
}


@dataclass(frozen=True)
class RateSettings:
    """What is measured."""

    image_size: int = setting(224, "Side of the images in pixels.", bounds=COUNT)
    num_images: int = setting(
        1000,
        "Images that each pipeline reads per round.",
        bounds=(2 * BATCH_SIZE, 2**31),  # The first batch isn't timed.
    )
    rounds: int = setting(7, "Rounds; each measures every pipeline once.", bounds=COUNT)


FLAGS: cli.Groups = (
    cli.Flags(Config, names=("data_dir",)),
    cli.Flags(RateSettings, common=True),
)


def main(argv: Sequence[str]) -> int:
    """Measures and prints the rates."""
    line = cli.parse(argv, __doc__, FLAGS)
    settings, data_dir = line.of(RateSettings), line.values["data_dir"]
    if not data_dir:
        raise UserError("--data_dir is required and must name a converted data set.")
    record_set = manifest.load(data_dir, "train")
    manifest.check_files(record_set, "train")
    # One thread per op, so that processor time is the time of one core.
    os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    from resnet.data import record_files

    records = record_files.open_split(record_set, "train")
    pipelines: dict[str, Callable[[], Iterable]] = {
        "plain tf.data": lambda: plain(records, settings),
        "sequential": lambda: sequential(records, settings),
        "random order": lambda: random_order(records, settings, "random_resized_crop"),
        "February 2018": lambda: random_order(
            records, settings, "random_resized_crop_2018_02"
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in pipelines}
    python_shares = []
    for _ in range(settings.rounds):
        for name, make_batches in pipelines.items():
            images_per_second, python_share = measure(make_batches())
            rates[name].append(images_per_second)
            if name == "random order":
                python_shares.append(python_share)
    report(rates, python_shares)
    difference = largest_difference(records, settings)
    print(f"{'largest difference of a pixel':30} {difference:.1e}")
    return 0


def report(rates: dict[str, list[float]], python_shares: list[float]) -> None:
    """Prints each pipeline's rates, and the ratios of rates of the same round."""
    for name, values in rates.items():
        print(f"{name:14} {spread(values, '.0f')} images/s per core")
    ours = rates["random order"]
    for name in ("plain tf.data", "sequential", "February 2018"):
        ratios = [a / b for a, b in zip(ours, rates[name], strict=True)]
        print(f"{f'random order / {name}':30} {spread(ratios, '.2f')}")
    print(f"{'Python, fraction of the time':30} {spread(python_shares, '.1%')}")


def measure(dataset: Iterable) -> tuple[float, float]:
    """Returns images per second of processor time, and Python's fraction of that time.

    Python runs only in this thread, since the dataset's threads run C++.
    """
    batches = iter(dataset)
    next(batches)  # Traces the graph and starts prefetching.
    start, python_start = time.process_time(), time.thread_time()
    num_images = sum(len(batch[0]) for batch in batches)
    seconds = time.process_time() - start
    return num_images / seconds, (time.thread_time() - python_start) / seconds


def plain(records: "RecordFiles", settings: RateSettings) -> "tf.data.Dataset":
    """Returns images that are read and preprocessed by TensorFlow's own ops."""
    import tensorflow as tf

    def load(number: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor]:
        original = _parse(record, records)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            _shape(original), tf.zeros([1, 0, 4]), **_WINDOW
        )
        flip = tf.random.uniform([]) < 0.5
        return (_plain_image(original, begin, size, flip, settings.image_size),)

    return _finish(_in_sequence(records).map(load, 1), settings)


def sequential(records: "RecordFiles", settings: RateSettings) -> "tf.data.Dataset":
    """Returns images that are read file by file and preprocessed as in training."""
    import tensorflow as tf

    from resnet.config.phases import Phase
    from resnet.data.augmentation import preprocessing

    def load(number: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor]:
        original = _parse(record, records)
        phase = Phase(num_steps=1, image_size=settings.image_size)
        return (preprocessing.train_image(original, phase, _seed(number)),)

    # AutoGraph would look for the name `tf` of the annotations, and warn.
    as_written = tf.autograph.experimental.do_not_convert(load)
    return _finish(_in_sequence(records).map(as_written, 1), settings)


def largest_difference(records: "RecordFiles", settings: RateSettings) -> float:
    """Returns the largest pixel difference of the first two pipelines on equal crops.

    The images are normalized: 1 is one standard deviation, about 57 of 255.
    """
    import tensorflow as tf

    from resnet.config.phases import Phase
    from resnet.data.augmentation import preprocessing

    def difference(number: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
        original, seed = _parse(record, records), _seed(number)
        ours = preprocessing.train_image(
            original, Phase(num_steps=1, image_size=settings.image_size), seed
        )
        shape = _shape(original)
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), seed, **_WINDOW
        )
        images = [
            _plain_image(original, begin, size, tf.constant(flip), settings.image_size)
            for flip in (False, True)
        ]
        # Where no crop was found, ours is the central square and is not compared.
        is_crop = tf.reduce_any(size[:2] != shape[:2])
        largest = [tf.reduce_max(tf.abs(ours - image)) for image in images]
        return tf.where(is_crop, tf.minimum(*largest), 0.0)

    differences = _in_sequence(records).take(settings.num_images).map(difference, 1)
    return max(float(value) for value in differences)


def _shape(original: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    if original.dtype == tf.uint8:
        return tf.shape(original)
    return tf.image.extract_jpeg_shape(original)


def _plain_image(
    original: "tf.Tensor",
    begin: "tf.Tensor",
    size: "tf.Tensor",
    flip: "tf.Tensor",
    image_size: int,
) -> "tf.Tensor":
    import tensorflow as tf

    from resnet.data.augmentation import preprocessing

    window = tf.concat([begin[:2], size[:2]], 0)
    if original.dtype == tf.uint8:
        image = tf.image.crop_to_bounding_box(original, *tf.unstack(window))
    else:
        image = tf.image.decode_and_crop_jpeg(original, window, channels=3)
    # The bicubic kernel of the published runs; tf.image.resize is equally fast.
    image = tf.compat.v1.image.resize_bicubic(image[None], [image_size] * 2)[0]
    image = tf.cond(flip, lambda: tf.image.flip_left_right(image), lambda: image)
    image -= [255 * value for value in preprocessing.MEAN]
    return image / [255 * value for value in preprocessing.STDDEV]


def _seed(number: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    return tf.stack([tf.constant(0, tf.int64), number])


def random_order(
    records: "RecordFiles", settings: RateSettings, augmentation: str
) -> "Batches":
    """Returns the training batches of a job of one rank."""
    from resnet.config.phases import Phase
    from resnet.data import batches
    from resnet.data.input_pipeline import Reading
    from resnet.data.record_files import shard_of_rank

    phase = Phase(
        name="measured",
        num_steps=settings.num_images // BATCH_SIZE,
        image_size=settings.image_size,
        augmentation=augmentation,
    )
    shard = shard_of_rank(records, [tuple(range(len(records.paths)))], 0)
    reading = Reading(
        shard=shard, phases=[phase], local_batch_size=BATCH_SIZE, num_parallel_calls=1
    )
    return batches.train_batches(reading)


def _in_sequence(records: "RecordFiles") -> "tf.data.Dataset":
    import tensorflow as tf

    return tf.data.TFRecordDataset(records.paths).repeat().enumerate()


def _parse(record: "tf.Tensor", records: "RecordFiles") -> "tf.Tensor":
    """Returns the original image as `preprocessing` takes it: a PNG decoded."""
    import tensorflow as tf

    from resnet.data import decoding

    keys = {
        records.image_key: tf.io.FixedLenFeature([], tf.string),
        records.label_key: tf.io.FixedLenFeature([], tf.int64),
    }
    encoded = tf.io.parse_single_example(record, keys)[records.image_key]
    return decoding.original_of(encoded, records.image_format)


def _finish(dataset: "tf.data.Dataset", settings: RateSettings) -> "tf.data.Dataset":
    """Returns batches with the batching and prefetching of training."""
    from resnet.data import input_pipeline

    return (
        dataset.take(settings.num_images // BATCH_SIZE * BATCH_SIZE)
        .batch(BATCH_SIZE, drop_remainder=True)
        .prefetch(input_pipeline.PREFETCHED_BATCHES)
        .with_options(input_pipeline.options(1))
    )


if __name__ == "__main__":
    sys.exit(program.run(main))
