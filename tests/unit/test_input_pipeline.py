import dataclasses
import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep import manifest, shards, sources, tfrecord_format
from resnet import config as configs
from resnet import recipes
from resnet.data import example_order, input_pipeline, record_files
from resnet.data.record_files import RecordFiles

NUM_EXAMPLES = 13
SHARD_SIZES = (5, 4, 4)
NUM_CLASSES = 4
RED_STEP = 18  # Red tells the example: far more than a JPEG's error.
MEAN = np.array([0.485, 0.456, 0.406])
STDDEV = np.array([0.229, 0.224, 0.225])

CONFIG = configs.resolve(
    recipes.DIGITS,
    {
        "precision": "float32",
        "seed": 2**40 + 7,
        "data_dir": "records",
        "model_dir": "model",
        "mode": "train",
        "eval_batch_size": 8,
        "steps_per_eval": 0,
        "log_step_count_steps": 10,
        "checkpoint_every": 0,
        "keep_checkpoints": 5,
        "num_parallel_calls": 0,
        "augmentation": "none",
        "global_batch_size": 6,
        "train_steps": 13,  # 78 examples are 6 epochs.
        "warmup_steps": 0,
    },
    num_train_examples=NUM_EXAMPLES,
    class_names=tuple("abcd"),
)


def write_set(folder: pathlib.Path) -> None:
    """Writes a set of 13 examples in 3 files; example i is of class i % 4."""
    y, x = np.mgrid[:32, :32]
    labelled = []
    for index in range(NUM_EXAMPLES):
        red = np.full_like(x, RED_STEP * index)
        path = folder / f"{index}.jpg"
        picture = Image.fromarray(np.stack([red, 4 * x, 4 * y], -1).astype(np.uint8))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=100, subsampling=0)
        path.write_bytes(file.getvalue())
        label = index % NUM_CLASSES
        source = sources.SourceImage(str(path), CONFIG.class_names[label])
        labelled.append((source, tfrecord_format.FIRST_LABEL + label))
    (folder / "train").mkdir()
    remaining = iter(labelled)
    written = [
        shards.write_shard(
            folder,
            f"train/{tfrecord_format.shard_name('train', number, len(SHARD_SIZES))}",
            [next(remaining) for _ in range(size)],
        )
        for number, size in enumerate(SHARD_SIZES)
    ]
    offsets_path, offsets_sha256 = manifest.write_offsets(
        folder, "train", np.concatenate([one.offsets for one in written])
    )
    split = manifest.Split(
        "train",
        tuple(one.shard for one in written),
        (4, 3, 3, 3),
        offsets_path,
        offsets_sha256,
    )
    manifest.write(
        manifest.Manifest(CONFIG.class_names, 1, {"train": split}, {}), folder
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> RecordFiles:
    folder = tmp_path_factory.mktemp("records")
    write_set(folder)
    return record_files.open_split(str(folder), "train")


Batches = list[tuple[np.ndarray, np.ndarray]]


def batches(
    records: RecordFiles,
    rank: int = 0,
    num_ranks: int = 1,
    start_step: int = 0,
    num_parallel_calls: int = 2,
    **changes,
) -> Batches:
    config = dataclasses.replace(CONFIG, **changes)
    dataset = input_pipeline.train_batches(
        records, config, rank, num_ranks, start_step, num_parallel_calls
    )
    return [(images.numpy(), labels.numpy()) for images, labels in dataset]


def examples_in(images: np.ndarray) -> list[int]:
    """Tells the examples by their red."""
    red = 255 * (images[..., 0] * STDDEV[0] + MEAN[0])
    return np.round(red.mean((1, 2)) / RED_STEP).astype(int).tolist()


def assert_equal(ours: Batches, expected: Batches) -> None:
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def join(ranks: list[Batches]) -> Batches:
    """Joins the ranks' parts of each step."""
    return [
        (np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
        for parts in zip(*ranks, strict=True)
    ]


def test_the_batches_are_those_of_the_order(records):
    ours = batches(records)
    assert len(ours) == 13
    positions = np.arange(78)
    order = example_order.shuffled(
        positions % NUM_EXAMPLES, CONFIG.seed, positions // NUM_EXAMPLES, NUM_EXAMPLES
    )
    found = [example for images, _ in ours for example in examples_in(images)]
    assert found == order.tolist()
    for images, labels in ours:
        assert images.shape == (6, 32, 32, 3)
        assert images.dtype == np.float32
        assert labels.dtype == np.int32
        assert labels.tolist() == [one % NUM_CLASSES for one in examples_in(images)]


def test_each_epoch_has_each_example_once_across_batches(records):
    found = [e for images, _ in batches(records) for e in examples_in(images)]
    epochs = np.array(found).reshape(6, NUM_EXAMPLES)
    for epoch in epochs:
        assert sorted(epoch) == list(range(NUM_EXAMPLES))
    assert len({tuple(epoch) for epoch in epochs}) == 6


def test_a_batch_larger_than_the_set_goes_on_with_the_next_epochs(records):
    ((images, _),) = batches(records, global_batch_size=39, train_steps=1)
    counts = np.bincount(examples_in(images), minlength=NUM_EXAMPLES)
    assert counts.tolist() == [3] * NUM_EXAMPLES


@pytest.mark.parametrize("augmentation", ["random_resized_crop", "random_shift"])
def test_the_batches_do_not_depend_on_the_number_of_ranks(records, augmentation):
    alone = batches(records, augmentation=augmentation)
    for num_ranks in (2, 3):
        ranks = [
            batches(records, rank, num_ranks, augmentation=augmentation)
            for rank in range(num_ranks)
        ]
        assert all(len(images) == 6 // num_ranks for images, _ in ranks[-1])
        assert_equal(join(ranks), alone)


def test_starting_at_a_step_is_the_same_as_skipping_to_it(records):
    changes = {"augmentation": "random_resized_crop"}
    whole = batches(records, **changes)
    for start_step in (1, 6, 12):
        ours = batches(records, start_step=start_step, **changes)
        assert_equal(ours, whole[start_step:])
    assert batches(records, start_step=13, **changes) == []


def test_the_batches_do_not_depend_on_the_number_of_threads(records):
    changes = {"augmentation": "random_resized_crop"}
    assert_equal(
        batches(records, num_parallel_calls=1, **changes),
        batches(records, num_parallel_calls=5, **changes),
    )


def test_an_example_is_augmented_otherwise_in_each_epoch(records):
    ours = batches(records, augmentation="random_resized_crop")
    positions = np.arange(78)
    order = example_order.shuffled(
        positions % NUM_EXAMPLES, CONFIG.seed, positions // NUM_EXAMPLES, NUM_EXAMPLES
    )
    images = np.concatenate([images for images, _ in ours])
    for example in range(NUM_EXAMPLES):
        views = images[order == example]
        assert len(views) == 6
        assert len({view.tobytes() for view in views}) == 6


def test_examples_of_one_epoch_are_augmented_independently(records):
    # A shift shows in where zeros have moved in, whatever the picture.
    ours = batches(records, augmentation="random_shift", train_steps=2)
    images = np.concatenate([images for images, _ in ours])
    masks = {np.any(image != 0, axis=-1).tobytes() for image in images}
    assert len(masks) > 3


def test_another_seed_gives_another_order(records):
    ours = [examples_in(images) for images, _ in batches(records)]
    other = [examples_in(images) for images, _ in batches(records, seed=1)]
    assert ours != other


@settings(deadline=None, max_examples=30)
@given(
    num_examples=st.integers(1, 10_000),
    seed=st.integers(0, 2**63 - 1),
    positions=st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
)
def test_tensors_are_shuffled_as_arrays_are(num_examples, seed, positions):
    run = np.array(positions, np.int64)

    def shuffle(position: tf.Tensor) -> tf.Tensor:
        return input_pipeline._shuffled(
            position % num_examples, seed, position // num_examples, num_examples
        )

    expected = example_order.shuffled(
        run % num_examples, seed, run // num_examples, num_examples
    )
    np.testing.assert_array_equal(shuffle(tf.constant(run)), expected)


def test_tensors_are_shuffled_as_arrays_are_inside_a_graph():
    positions = np.arange(3000)
    ours = tf.function(
        lambda p: input_pipeline._shuffled(p % 1000, 2**62 + 3, p // 1000, 1000)
    )(tf.constant(positions))
    expected = example_order.shuffled(
        positions % 1000, 2**62 + 3, positions // 1000, 1000
    )
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("batch_size", [1, 4, 13, 20])
@pytest.mark.parametrize(("first", "end"), [(0, 13), (3, 10), (12, 13)])
def test_evaluation_has_each_example_once_in_the_order_of_the_files(
    records, batch_size, first, end
):
    dataset = input_pipeline.eval_batches(records, 32, 1.0, first, end, batch_size, 2)
    found = []
    for images, labels, is_real in dataset:
        assert images.shape == (batch_size, 32, 32, 3)
        assert is_real.dtype == tf.bool
        examples = examples_in(images.numpy())
        assert labels.numpy().tolist() == [one % NUM_CLASSES for one in examples]
        found += [e for e, is_one in zip(examples, is_real, strict=True) if is_one]
    assert found == list(range(first, end))


def test_evaluation_crops_as_it_is_told_to(records):
    (whole,) = input_pipeline.eval_batches(records, 32, 1.0, 0, 13, 13, 2)
    (part,) = input_pipeline.eval_batches(records, 32, 0.5, 0, 13, 13, 2)
    # Blue tells the row: 4 * 31 at the end of the whole, 4 * 23 at the end of the part.
    ends = [
        255 * (batch[0].numpy()[:, -1, :, 2] * STDDEV[2] + MEAN[2]).mean()
        for batch in (whole, part)
    ]
    assert ends == pytest.approx([124, 92], abs=4)


def evaluation_batches(records: RecordFiles) -> list:
    return list(input_pipeline.eval_batches(records, 32, 1.0, 0, 13, 4, 2))


@pytest.mark.parametrize("read_all", [batches, evaluation_batches])
def test_a_flipped_byte_ends_the_batches_with_an_error(tmp_path, read_all):
    write_set(tmp_path)
    records = record_files.open_split(str(tmp_path), "train")
    path = pathlib.Path(records.paths[1])
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError, match="corrupted record"):
        read_all(records)


@pytest.mark.parametrize("read_all", [batches, evaluation_batches])
def test_a_record_that_is_not_there_ends_the_batches_with_an_error(records, read_all):
    offsets = records.offset_of_example.copy()
    offsets[7] = 10**6
    damaged = dataclasses.replace(records, offset_of_example=offsets)
    with pytest.raises(tf.errors.OpError):
        read_all(damaged)


def test_a_picture_that_cannot_be_decoded_ends_the_batches_with_an_error(tmp_path):
    path = tmp_path / "record"
    example = tfrecord_format.image_example(
        b"no JPEG", height=1, width=1, label=1, class_name="a", filename="a"
    )
    path.write_bytes(tfrecord_format.frame_record(example))
    records = RecordFiles((str(path),), np.zeros(1, np.int32), np.zeros(1, int), 1, ())
    with pytest.raises(tf.errors.InvalidArgumentError):
        batches(records)
