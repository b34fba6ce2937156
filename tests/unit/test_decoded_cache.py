"""The cache of decoded images of the input pipeline."""

import functools
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.config import Config
from resnet.data import input_pipeline
from resnet.data.corrupt_records import Replacements
from resnet.data.input_pipeline import Batch, DecodedCache
from tests.unit.changed_settings import changed
from tests.unit.read_batches import assert_equal, open_train, reading
from tests.unit.seen_images import jpeg, noise

NUM_IMAGES = 9
SIDE = 300  # 270,000 bytes: three images are less than a megabyte, four more.


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_tiny_set) -> pathlib.Path:
    """A set of noisy images with halved colours, in two files; not to be changed."""
    originals = [
        bytes(jpeg(noise(SIDE, SIDE + i), subsampling=2).numpy())
        for i in range(NUM_IMAGES)
    ]
    labels = [number % 3 for number in range(NUM_IMAGES)]
    folder = tmp_path_factory.mktemp("noisy")
    write_tiny_set(folder, originals, labels, "abc", [5, 4])
    return folder


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(
        NUM_IMAGES,
        augmentation="random_resized_crop",
        global_batch_size=4,
        train_steps=9,  # Four epochs.
    )


def train_batches(folder: pathlib.Path, config: Config, cache: DecodedCache):
    what = reading(open_train(folder), config, num_parallel_calls=4)
    none = Replacements.of(set(), NUM_IMAGES)
    dataset = input_pipeline.train_batches(what, 0, none, cache)
    return (Batch(*batch) for batch in dataset.as_numpy_iterator())


def num_bytes_of(cache: DecodedCache) -> int:
    """Bytes of the images that are really there."""
    _, originals = cache._images.export()
    return sum(len(original) for original in originals.numpy())


@pytest.fixture(scope="module")
def expected(folder, config) -> list[Batch]:
    """The batches without room for any image."""
    return list(train_batches(folder, config, DecodedCache(0)))


# Room for three and all of the nine images.
@pytest.mark.parametrize(("megabytes", "num_kept"), [(1, 3), (100, 9)])
def test_the_network_sees_the_same_with_a_cache_of_any_size(
    folder, config, expected, megabytes, num_kept
):
    cache = DecodedCache(megabytes)
    assert_equal(list(train_batches(folder, config, cache)), expected)
    assert num_bytes_of(cache) <= megabytes * 10**6
    # Two threads that load the same image at the same time count it twice.
    assert num_kept - 2 <= int(cache._images.size()) <= num_kept


def test_what_is_in_the_cache_is_not_read_again(folder, config, expected, tmp_path):
    shutil.copytree(folder, tmp_path / "own")
    longer = changed(config, train_steps=1000)
    batches = train_batches(tmp_path / "own", longer, DecodedCache(100))
    # The first epoch and what is fetched in advance: two batches, and some images.
    ours = [next(batches) for _ in range(5)]
    for path in (tmp_path / "own" / "train").iterdir():
        path.write_bytes(b"")  # The file itself: it may still be open.
        path.unlink()
    ours += [next(batches) for _ in range(4)]
    assert_equal(ours, expected)


def test_room_is_never_exceeded_however_many_threads_look_at_once():
    # Each thread brings another image, of 100,000 bytes and some; nine have room.
    cache = DecodedCache(1)

    def get(number: tf.Tensor) -> tf.Tensor:
        image = tf.zeros([100, 1000 // 3, 3], tf.uint8)
        _, label = cache.get(number, lambda: (image, number))
        return label

    numbers = tf.data.Dataset.range(500).map(get, num_parallel_calls=16)
    assert [int(number) for number in numbers] == list(range(500))
    assert 0 < num_bytes_of(cache) <= int(cache._num_bytes) <= 10**6


def test_the_label_of_a_kept_image_is_its_own():
    cache = DecodedCache(1)
    for value in (7, 8):
        image, label = tf.fill([2, 2, 3], np.uint8(value)), tf.constant(value, tf.int64)
        load = functools.partial(lambda *pair: pair, image, label)
        image, label = cache.get(tf.constant(3, tf.int64), load)
        assert (int(image[0, 0, 0]), int(label)) == (7, 7)
