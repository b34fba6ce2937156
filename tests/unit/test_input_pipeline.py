"""What batches a run has: their examples, images and labels, and its phases."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from resnet.config import phases
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.data import batches, example_order, input_pipeline
from resnet.data.corrupt_records import Replacements
from resnet.data.example_order import ClassOrder
from resnet.data.input_pipeline import Batch, DecodedCache, ToRead
from resnet.data.record_files import ExampleShard, RecordFiles
from tests.drawn import shuffled
from tests.unit.changed_settings import changed
from tests.unit.encoded_images import encode
from tests.unit.read_batches import (
    arrays,
    assert_equal,
    evaluate,
    join,
    open_train,
    reading,
    train,
)
from tests.unit.seen_images import jpeg, noise, pixels

NUM_EXAMPLES = 13
NUM_CLASSES = 4
NUM_STEPS = 13  # Of six examples: 78 are six epochs.
STDDEV_OF_BLUE, MEAN_OF_BLUE = 0.225, 0.406


@pytest.fixture(scope="module")
def records(numbered_set) -> RecordFiles:
    return open_train(numbered_set)


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(
        NUM_EXAMPLES,
        "abcd",
        seed=2**40 + 7,
        augmentation="none",
        global_batch_size=6,
        train_steps=NUM_STEPS,
    )


@pytest.fixture(scope="module")
def plain(records, config) -> list[Batch]:
    """The run without augmentation, not to be changed."""
    return train(records, config)


def test_the_batches_are_those_of_the_order(config, plain, numbers_in):
    positions = np.arange(78)
    order = shuffled(
        positions % NUM_EXAMPLES, config.seed, positions // NUM_EXAMPLES, NUM_EXAMPLES
    ).reshape(NUM_STEPS, 6)
    assert len(plain) == NUM_STEPS
    for batch, examples in zip(plain, order.tolist(), strict=True):
        assert batch.examples.tolist() == numbers_in(batch.images) == examples
        assert batch.images.shape == (6, 32, 32, 3)
        assert batch.images.dtype == batch.mix_weight.dtype == np.float32
        assert batch.labels.dtype == np.int32
        assert batch.labels.tolist() == (batch.examples % NUM_CLASSES).tolist()
        assert batch.mask.tolist() == [True] * 6
        assert batch.mix_weight.tolist() == [1] * 6


def test_an_example_is_augmented_otherwise_in_each_epoch(records, config):
    cropped = train(records, config, augmentation="random_resized_crop")
    images = np.concatenate([batch.images for batch in cropped])
    examples = np.concatenate([batch.examples for batch in cropped])
    for example in range(NUM_EXAMPLES):
        views = images[examples == example]
        assert len(views) == len({view.tobytes() for view in views}) == 6


def test_balanced_batches_are_those_of_the_order_and_each_use_has_its_own_crop(
    records, config
):
    """Of 13 labels, 4 are 0 and 3 each of the others; 13 slots are 3, 3, 3 and 4."""
    changes = {"sampling": "balanced", "augmentation": "random_resized_crop"}
    sampled = train(records, config, **changes)
    examples, labels, images = (
        np.concatenate([getattr(batch, name) for batch in sampled])
        for name in ("examples", "labels", "images")
    )
    assert labels.tolist() == (examples % NUM_CLASSES).tolist()
    for epoch in np.split(labels, 6):
        assert np.bincount(epoch).tolist() == [3, 3, 3, 4]
    classes = ClassOrder.of(np.arange(NUM_EXAMPLES) % NUM_CLASSES, "balanced")
    positions = np.arange(78)
    order = example_order.examples_at(positions, config.seed, NUM_EXAMPLES, classes)
    assert examples.tolist() == order[0].tolist()
    for example in range(NUM_EXAMPLES):
        views = images[examples == example]
        assert len(views) == len({view.tobytes() for view in views}) > 3
    (part,) = train(records, config, 1, 2, start_step=12, **changes)
    expected = Batch(*(values[3:] for values in sampled[-1]))
    assert_equal([part], [expected])


def test_augmentation_depends_on_the_number_in_the_whole_split(records, config):
    # A shift shows in where zeros have moved in. One epoch of the whole, and one of a
    # part of it.
    changes = {"augmentation": "random_shift", "train_steps": 1}
    (whole,) = train(records, config, global_batch_size=13, **changes)
    assert len({np.any(image != 0, axis=-1).tobytes() for image in whole.images}) > 3
    images = dict(zip(whole.examples.tolist(), whole.images, strict=True))
    part = records.only_files([1, 2])
    (batch,) = train(part, config, global_batch_size=8, **changes)
    assert sorted(batch.examples) == list(range(8))
    for example, image in zip(batch.examples, batch.images, strict=True):
        np.testing.assert_array_equal(image, images[part.number_of_example[example]])


def test_alternating_flips_show_both_sides_in_two_epochs(records, config, plain):
    ours = train(
        records,
        config,
        augmentation="pad_crop_flip",
        shift_fraction=0.0,
        flips="alternating",
        train_steps=9,  # 54 examples are four epochs and a few of the fifth.
    )
    upright, images = (
        np.concatenate([batch.images for batch in run]) for run in (plain[:9], ours)
    )
    is_flipped = np.array([not np.array_equal(*pair) for pair in zip(images, upright)])  # noqa: B905
    np.testing.assert_array_equal(
        images, np.where(is_flipped[:, None, None, None], upright[:, :, ::-1], upright)
    )
    examples = np.concatenate([batch.examples for batch in ours])
    sides = np.array([is_flipped[examples == i][:4] for i in range(NUM_EXAMPLES)])
    np.testing.assert_array_equal(sides[:, 1:], ~sides[:, :-1])
    assert len(set(sides[:, 0])) == 2


@pytest.mark.parametrize(
    ("batch_size", "rank", "num_ranks"), [(4, 0, 1), (20, 1, 2), (1, 12, 13)]
)
def test_evaluation_has_each_example_once_in_the_order_of_the_files(
    records, config, numbers_in, batch_size, rank, num_ranks
):
    shard = ExampleShard(records, rank, num_ranks, NUM_EXAMPLES)
    none = Replacements.of(set(), NUM_EXAMPLES)

    def read(start: int) -> list[Batch]:
        return arrays(
            map(  # Tensors, as of `Batches`.
                Batch._make,
                input_pipeline.eval_batches(
                    config, shard, batch_size, 2, 1, start, none
                ),
            )
        )

    examples = []
    whole = read(0)
    for batch in whole:
        assert batch.images.shape == (batch_size, 32, 32, 3)
        assert numbers_in(batch.images) == batch.examples.tolist()
        assert batch.labels.tolist() == (batch.examples % NUM_CLASSES).tolist()
        examples += batch.examples[batch.mask].tolist()
    assert examples == list(range(shard.first_example, shard.end_example))
    assert_equal(read(1), whole[1:])
    assert read(len(whole)) == []


# Rows 8 to 23 of 32, or 16 to 47 of 64.
@pytest.mark.parametrize(
    ("crop", "last_row"), [("crop_then_resize", 92), ("resize_then_crop", 94)]
)
def test_evaluation_crops_as_it_is_told_to(records, config, crop, last_row):
    # Blue tells the row: 4 * 31 at the end of the whole.
    changes = {"eval_crop_fraction": 0.5, "eval_crop": crop}
    (batch,) = evaluate(records, config, batch_size=13, **changes)
    blue = batch.images[:, -1, :, 2] * STDDEV_OF_BLUE + MEAN_OF_BLUE
    assert 255 * float(blue.mean()) == pytest.approx(last_row, abs=4)


def test_png_images_are_read_too_also_grey_ones(tmp_path, config, write_tiny_set):
    colour, grey = noise(32, 32), noise(32, 32)[..., 0]
    transparent = np.dstack([colour, np.zeros_like(grey)])  # As others may store it.
    images = (colour, grey, transparent)
    originals = [encode(Image.fromarray(values), "PNG") for values in images]
    write_tiny_set(tmp_path, originals, [0, 1, 2], "abcd", [3])
    records = dataclasses.replace(open_train(tmp_path), image_format="png")
    white = np.full_like(colour, 255)
    expected = np.array([colour, np.stack([grey] * 3, -1), white])
    (trained,) = train(records, config, global_batch_size=3, train_steps=1)
    (evaluated,) = evaluate(records, config, batch_size=3)
    for batch in (trained, evaluated):
        assert sorted(batch.labels) == [0, 1, 2]
        # A PNG is exact, and at its own size an image isn't resized; float32.
        values = pixels(batch.images)
        np.testing.assert_allclose(values, expected[batch.labels], rtol=0, atol=1e-3)


def test_a_worker_reads_the_micro_batches_of_the_pipeline(records, config):
    changes = {"augmentation": "random_resized_crop", "mixup": 0.2}
    config = changed(config, accumulation_steps=3, **changes)
    what = reading(records, config)
    of_part = input_pipeline.to_read(what, Replacements.of(set(), NUM_EXAMPLES))
    (phase,) = config.phases

    @tf.function(autograph=False)
    def read(number: tf.Tensor) -> Batch:
        return input_pipeline.read_batch(of_part(number), phase, what)

    expected = arrays(batches.train_batches(what, 11))
    ours = [Batch(*read(tf.constant(3 * 11 + part, tf.int64))) for part in range(6)]
    assert_equal(ours, expected)


def test_a_worker_evaluates_the_batches_of_the_pipeline(records, config):
    size = 4

    @tf.function(autograph=False)
    def read(what: ToRead) -> Batch:
        return input_pipeline.read_eval_batch(what, records, config, size, 2)

    shard = ExampleShard(records, 0, 1, NUM_EXAMPLES)
    none = Replacements.of(set(), NUM_EXAMPLES)
    to_read = input_pipeline.eval_to_read(shard, size, none)
    ours = [read(to_read(tf.constant(i, tf.int64))) for i in range(4)]
    assert_equal(ours, evaluate(records, config, size))


BATCH = 12
PHASES = (
    Phase(name="first", num_steps=2, image_size=48, min_crop_area=0.5),
    Phase(name="plain", num_steps=1, image_size=32, augmentation="none"),
    Phase(name="mixed", num_steps=3, image_size=32, mixup=0.3, cutmix=1.0),
    Phase(name="last", num_steps=2, image_size=40, augmentation="random_crop"),
)


@pytest.fixture(scope="module")
def phased(make_config) -> Config:
    config = make_config(NUM_EXAMPLES, "abcd", seed=3, global_batch_size=BATCH)
    return dataclasses.replace(config, phases=PHASES)


@pytest.fixture(scope="module")
def whole(records, phased) -> list[Batch]:
    """The global batch of each step over the phases."""
    return train(records, phased)


def test_each_step_is_as_its_phase_has_it(records, phased, whole):
    assert len(whole) == 8
    for phase, first_step in zip(PHASES, phases.first_steps(PHASES), strict=True):
        end = first_step + phase.num_steps
        # The same steps of a run that has this phase alone.
        alone = dataclasses.replace(
            phased, phases=(dataclasses.replace(phase, num_steps=end),)
        )
        assert_equal(
            whole[first_step:end], train(records, alone, start_step=first_step)
        )
        for batch in whole[first_step:end]:
            assert batch.images.shape == (BATCH, *[phase.image_size] * 2, 3)
            assert bool((batch.mix_weight < 1).any()) == (phase.name == "mixed")
            np.testing.assert_array_equal(batch.mix_weight[::2], batch.mix_weight[1::2])
    examples = np.concatenate([batch.examples for batch in whole])
    for epoch in np.split(examples[: 7 * NUM_EXAMPLES], 7):
        assert sorted(epoch) == list(range(NUM_EXAMPLES))


@pytest.mark.parametrize(
    ("num_ranks", "num_parts", "start_step", "num_threads"),
    [(1, 6, 1, 5), (3, 2, 6, 1), (1, 2, 8, 2)],
)
def test_the_parts_of_all_ranks_join_to_the_global_batch(
    records, phased, whole, num_ranks, num_parts, start_step, num_threads
):
    parts = {"accumulation_steps": num_parts}
    ranks = [
        train(records, phased, rank, num_ranks, start_step, num_threads, **parts)
        for rank in range(num_ranks)
    ]
    steps = [range(i, i + num_parts) for i in range(0, len(ranks[0]), num_parts)]
    joined = [join([run[part] for run in ranks for part in step]) for step in steps]
    assert_equal(joined, whole[start_step:])
    sizes = {len(part.labels) for run in ranks for part in run}
    assert sizes <= {BATCH // num_ranks // num_parts}


NUM_IMAGES = 9
SIDE = 300  # 270,000 bytes: three images are less than a megabyte, four more.


@pytest.fixture(scope="module")
def noisy_set(tmp_path_factory, write_tiny_set) -> pathlib.Path:
    """A set of noisy images with halved colours, in two files; not to be changed."""
    originals = [
        bytes(jpeg(noise(SIDE, SIDE + i), subsampling=2).numpy())
        for i in range(NUM_IMAGES)
    ]
    labels = [number % 3 for number in range(NUM_IMAGES)]
    noisy_set = tmp_path_factory.mktemp("noisy")
    write_tiny_set(noisy_set, originals, labels, "abc", [5, 4])
    return noisy_set


@pytest.fixture(scope="module")
def noisy_config(make_config) -> Config:
    return make_config(
        NUM_IMAGES,
        augmentation="random_resized_crop",
        global_batch_size=4,
        train_steps=9,  # Four epochs.
    )


def with_cache(noisy_set: pathlib.Path, noisy_config: Config, cache: DecodedCache):
    what = reading(open_train(noisy_set), noisy_config, num_parallel_calls=4)
    none = Replacements.of(set(), NUM_IMAGES)
    dataset = input_pipeline.train_batches(what, 0, none, cache)
    return (Batch(*batch) for batch in dataset.as_numpy_iterator())


def num_bytes_of(cache: DecodedCache) -> int:
    """Bytes of the images that are really there."""
    _, originals = cache._images.export()
    return sum(len(original) for original in originals.numpy())


@pytest.fixture(scope="module")
def without_cache(noisy_set, noisy_config) -> list[Batch]:
    """The batches without room for any image."""
    return list(with_cache(noisy_set, noisy_config, DecodedCache(0)))


# Room for three and all of the nine images.
@pytest.mark.parametrize(("megabytes", "num_kept"), [(1, 3), (100, 9)])
def test_the_network_sees_the_same_with_a_cache_of_any_size(
    noisy_set, noisy_config, without_cache, megabytes, num_kept
):
    cache = DecodedCache(megabytes)
    assert_equal(list(with_cache(noisy_set, noisy_config, cache)), without_cache)
    assert num_bytes_of(cache) <= megabytes * 10**6
    # Two threads that load the same image at the same time count it twice.
    assert num_kept - 2 <= int(cache._images.size()) <= num_kept


def test_what_is_in_the_cache_is_not_read_again(
    noisy_set, noisy_config, without_cache, tmp_path
):
    shutil.copytree(noisy_set, tmp_path / "own")
    longer = changed(noisy_config, train_steps=1000)
    batches = with_cache(tmp_path / "own", longer, DecodedCache(100))
    # The first epoch and what is fetched in advance: two batches, and some images.
    ours = [next(batches) for _ in range(5)]
    for path in (tmp_path / "own" / "train").iterdir():
        path.write_bytes(b"")  # The file itself: it may still be open.
        path.unlink()
    ours += [next(batches) for _ in range(4)]
    assert_equal(ours, without_cache)


def test_room_is_never_exceeded_however_many_threads_look_at_once():
    # Each thread brings another image, of 100,000 bytes and some; nine have room.
    cache = DecodedCache(1)

    def get(number: tf.Tensor) -> tf.Tensor:
        image = tf.fill([100, 1000 // 3, 3], tf.cast(number, tf.uint8))
        return cache.get(number, lambda: image)[0, 0, 0]

    numbers = tf.data.Dataset.range(250).map(get, num_parallel_calls=16)
    assert [int(number) for number in numbers] == list(range(250))
    assert 0 < num_bytes_of(cache) <= int(cache._num_bytes) <= 10**6
