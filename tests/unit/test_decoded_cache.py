import io
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.records import manifest
from resnet.config.config import Config
from resnet.data import input_pipeline, record_files
from resnet.data.corrupt_records import Replacements
from resnet.data.decoded_cache import DecodedCache
from resnet.data.input_pipeline import Batch
from resnet.data.record_files import RecordFiles
from tests.unit.changed_settings import changed

NUM_PICTURES = 9
SIDE = 300  # 270,000 bytes: three images are less than a megabyte, four more.


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_tiny_set) -> pathlib.Path:
    """A set of noisy images with halved colours, in two files; not to be changed."""
    generator = np.random.default_rng(0)
    originals = []
    for _ in range(NUM_PICTURES):
        pixels = generator.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        originals.append(file.getvalue())
    labels = [number % 3 for number in range(NUM_PICTURES)]
    folder = tmp_path_factory.mktemp("noisy")
    write_tiny_set(folder, originals, labels, "abc", [5, 4])
    return folder


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(
        NUM_PICTURES,
        augmentation="random_resized_crop",
        global_batch_size=4,
        train_steps=9,  # Four epochs.
    )


def open_train(folder: pathlib.Path) -> RecordFiles:
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


def train_batches(
    records: RecordFiles, config: Config, cache: DecodedCache | None
) -> tf.data.Dataset:
    none = Replacements.of(set(), records.num_examples)
    return input_pipeline.train_batches(
        records,
        config.phases,
        seed=config.seed,
        accumulation_steps=1,
        rank=0,
        num_ranks=1,
        local_batch_size=4,
        start_micro_batch=0,
        num_parallel_calls=4,
        replacements=none,
        cache=cache,
    )


def arrays(dataset: tf.data.Dataset) -> list[Batch]:
    return [Batch(*one) for one in dataset.as_numpy_iterator()]


def num_bytes_of(cache: DecodedCache) -> int:
    """Bytes of the images that are really there."""
    _, originals = cache._images.export()
    return sum(len(original) for original in originals.numpy())


@pytest.fixture(scope="module")
def expected(folder, config) -> list[Batch]:
    """The batches without room for any image."""
    return arrays(train_batches(open_train(folder), config, DecodedCache(0)))


# Room for three, seven and all of the nine images.
@pytest.mark.parametrize(("megabytes", "num_kept"), [(1, 3), (2, 7), (100, 9)])
def test_the_network_sees_the_same_with_a_cache_of_any_size(
    folder, config, expected, megabytes, num_kept
):
    cache = DecodedCache(megabytes)
    ours = arrays(train_batches(open_train(folder), config, cache))
    assert len(ours) == len(expected) == 9
    for batch, other in zip(ours, expected, strict=True):
        for values, other_values in zip(batch, other, strict=True):
            np.testing.assert_array_equal(values, other_values)
    assert num_bytes_of(cache) <= megabytes * 10**6
    # Two threads that load the same image at the same time count it twice.
    assert num_kept - 2 <= int(cache._images.size()) <= num_kept


def test_what_is_in_the_cache_is_not_read_again(folder, config, expected, tmp_path):
    shutil.copytree(folder, tmp_path / "own")
    dataset = train_batches(
        open_train(tmp_path / "own"),
        changed(config, train_steps=1000),
        DecodedCache(100),
    )
    batches = dataset.as_numpy_iterator()
    # The first epoch and what is fetched in advance: two batches, and some images.
    ours = [Batch(*next(batches)) for _ in range(5)]
    for path in (tmp_path / "own" / "train").iterdir():
        path.write_bytes(b"")  # The file itself: it may still be open.
        path.unlink()
    ours += [Batch(*next(batches)) for _ in range(4)]
    for batch, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(batch.images, other.images)
        np.testing.assert_array_equal(batch.labels, other.labels)


def test_room_is_never_exceeded_however_many_threads_look_at_once():
    # Each thread brings another image, of 100,000 bytes and some; nine have room.
    for _ in range(5):
        cache = DecodedCache(1)

        def get(number: tf.Tensor, cache: DecodedCache = cache) -> tf.Tensor:
            def load() -> tuple[tf.Tensor, tf.Tensor]:
                shape = tf.stack([100, 1000 // 3, 3])
                return tf.zeros(shape, tf.uint8), number

            _, label = cache.get(number, load)
            return label

        numbers = tf.data.Dataset.range(200).map(get, num_parallel_calls=16)
        assert [int(number) for number in numbers] == list(range(200))
        assert 0 < num_bytes_of(cache) <= 10**6
        assert num_bytes_of(cache) <= int(cache._num_bytes) <= 10**6


def test_the_label_of_a_kept_image_is_its_own():
    cache = DecodedCache(1)
    seen = []
    for value in (7, 8):
        original, label = cache.get(
            tf.constant(3, tf.int64),
            lambda value=value: (
                tf.fill([2, 2, 3], tf.cast(value, tf.uint8)),
                tf.constant(value, tf.int64),
            ),
        )
        seen.append((int(original[0, 0, 0]), int(label)))
    assert seen == [(7, 7), (7, 7)]
