import dataclasses
import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.records import manifest
from resnet.config.config import Config
from resnet.data import example_order, input_pipeline, record_files
from resnet.data.corrupt_records import Replacements
from resnet.data.input_pipeline import Batch
from resnet.data.record_files import RecordFiles
from tests.unit.changed_settings import changed

NUM_EXAMPLES = 13
NUM_CLASSES = 4
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
        train_steps=13,  # 78 examples are 6 epochs.
    )


def train(
    records: RecordFiles,
    config: Config,
    rank: int = 0,
    num_ranks: int = 1,
    start_step: int = 0,
    num_parallel_calls: int = 2,
    corrupt: frozenset[int] = frozenset(),
    **changes,
) -> list[Batch]:
    """Returns a rank's batches, of arrays."""
    config = changed(config, **changes)
    dataset = input_pipeline.train_batches(
        records,
        config.phases,
        seed=config.seed,
        accumulation_steps=config.accumulation_steps,
        rank=rank,
        num_ranks=num_ranks,
        local_batch_size=config.global_batch_size // num_ranks,
        start_micro_batch=start_step,
        num_parallel_calls=num_parallel_calls,
        replacements=Replacements.of(set(corrupt), records.num_examples),
        cache=None,
    )
    return [Batch(*one) for one in dataset.as_numpy_iterator()]


def evaluate(
    records: RecordFiles,
    config: Config,
    first: int = 0,
    end: int = NUM_EXAMPLES,
    batch_size: int = 4,
    start_batch: int = 0,
    corrupt: frozenset[int] = frozenset(),
    **changes,
) -> list[Batch]:
    """Returns the batches of evaluation, of arrays."""
    config = changed(config, **changes)
    dataset = input_pipeline.eval_batches(
        records,
        image_size=config.image_size,
        crop=config.eval_crop,
        crop_fraction=config.eval_crop_fraction,
        first_example=first,
        end_example=end,
        batch_size=batch_size,
        start_batch=start_batch,
        num_parallel_calls=2,
        replacements=Replacements.of(set(corrupt), records.num_examples),
    )
    return [Batch(*one) for one in dataset.as_numpy_iterator()]


def open_train(folder: pathlib.Path) -> RecordFiles:
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


def assert_equal(ours: list[Batch], expected: list[Batch]) -> None:
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        for values, expected_values in zip(one, other, strict=True):
            np.testing.assert_array_equal(values, expected_values)


def join(ranks: list[list[Batch]]) -> list[Batch]:
    """Joins the ranks' parts of each step."""
    return [
        Batch(*(np.concatenate(values) for values in zip(*parts, strict=True)))
        for parts in zip(*ranks, strict=True)
    ]


CROPPED = {"augmentation": "random_resized_crop"}


@pytest.fixture(scope="module")
def plain(records, config) -> list[Batch]:
    """The run without augmentation, not to be changed."""
    return train(records, config)


@pytest.fixture(scope="module")
def cropped(records, config) -> list[Batch]:
    """The run with random crops, on two threads; not to be changed."""
    return train(records, config, **CROPPED)


def order_of_run(config: Config) -> list[int]:
    positions = np.arange(78)
    return example_order.shuffled(
        positions % NUM_EXAMPLES, config.seed, positions // NUM_EXAMPLES, NUM_EXAMPLES
    ).tolist()


def test_the_batches_are_those_of_the_order(config, plain, numbers_in):
    ours = plain
    assert len(ours) == 13
    found = [number for batch in ours for number in numbers_in(batch.images)]
    assert found == order_of_run(config)
    assert [number for batch in ours for number in batch.examples] == found
    for batch in ours:
        assert batch.images.shape == (6, 32, 32, 3)
        assert batch.images.dtype == np.float32
        assert batch.labels.dtype == np.int32
        assert batch.labels.tolist() == (batch.examples % NUM_CLASSES).tolist()
        assert batch.mask.tolist() == [True] * 6
        assert batch.mix_weight.tolist() == [1] * 6


@pytest.mark.parametrize(("num_ranks", "start_step"), [(1, 5), (2, 0), (6, 12)])
def test_the_graph_reads_what_the_arithmetic_says(
    records, config, numbers_in, num_ranks, start_step
):
    for rank in {0, num_ranks - 1}:
        ours = train(records, config, rank, num_ranks, start_step)
        expected = [
            input_pipeline.examples_of_micro_batch(
                step, config.seed, rank, num_ranks, 6 // num_ranks, NUM_EXAMPLES
            ).tolist()
            for step in range(start_step, 13)
        ]
        assert [batch.examples.tolist() for batch in ours] == expected
        assert [numbers_in(batch.images) for batch in ours] == expected


def test_each_epoch_has_each_example_once_across_batches(plain, numbers_in):
    found = [n for batch in plain for n in numbers_in(batch.images)]
    epochs = np.array(found).reshape(6, NUM_EXAMPLES)
    for epoch in epochs:
        assert sorted(epoch) == list(range(NUM_EXAMPLES))
    assert len({tuple(epoch) for epoch in epochs}) == 6


def test_a_batch_larger_than_the_set_continues_into_the_next_epochs(
    records, config, numbers_in
):
    (batch,) = train(records, config, global_batch_size=39, train_steps=1)
    counts = np.bincount(numbers_in(batch.images), minlength=NUM_EXAMPLES)
    assert counts.tolist() == [3] * NUM_EXAMPLES


def test_the_batches_do_not_depend_on_the_number_of_ranks(records, config, cropped):
    for num_ranks in (2, 3):
        ranks = [
            train(records, config, rank, num_ranks, **CROPPED)
            for rank in range(num_ranks)
        ]
        assert all(len(batch.images) == 6 // num_ranks for batch in ranks[-1])
        assert_equal(join(ranks), cropped)


def test_starting_at_a_step_is_the_same_as_skipping_to_it(records, config, cropped):
    for start_step in (1, 6):
        ours = train(records, config, start_step=start_step, **CROPPED)
        assert_equal(ours, cropped[start_step:])
    assert train(records, config, start_step=13, **CROPPED) == []


def test_the_batches_do_not_depend_on_the_number_of_threads(records, config, cropped):
    for num_threads in (1, 5):
        ours = train(records, config, num_parallel_calls=num_threads, **CROPPED)
        assert_equal(ours, cropped)


def test_an_example_is_augmented_otherwise_in_each_epoch(cropped):
    images = np.concatenate([batch.images for batch in cropped])
    examples = np.concatenate([batch.examples for batch in cropped])
    for example in range(NUM_EXAMPLES):
        views = images[examples == example]
        assert len(views) == 6
        assert len({view.tobytes() for view in views}) == 6


def test_examples_of_one_epoch_are_augmented_independently(records, config):
    # A shift shows in where zeros have moved in, whatever the image.
    ours = train(records, config, augmentation="random_shift", train_steps=2)
    images = np.concatenate([batch.images for batch in ours])
    masks = {np.any(image != 0, axis=-1).tobytes() for image in images}
    assert len(masks) > 3


def test_an_example_is_augmented_by_its_number_in_the_whole_split(records, config):
    # One epoch of the whole, and one of a part of it.
    changes = {"augmentation": "random_shift", "train_steps": 1}
    (whole,) = train(records, config, global_batch_size=13, **changes)
    images = dict(zip(whole.examples.tolist(), whole.images, strict=True))
    part = records.only_files([1, 2])
    (batch,) = train(part, config, global_batch_size=8, **changes)
    assert sorted(batch.examples) == list(range(8))
    for example, image in zip(batch.examples, batch.images, strict=True):
        np.testing.assert_array_equal(image, images[part.number_of_example[example]])


def test_another_seed_gives_another_order(records, config, plain):
    ours = [batch.examples.tolist() for batch in plain]
    other = [batch.examples.tolist() for batch in train(records, config, seed=1)]
    assert ours != other


@pytest.mark.parametrize("batch_size", [1, 4, 13, 20])
@pytest.mark.parametrize(("first", "end"), [(0, 13), (3, 10), (12, 13)])
def test_evaluation_has_each_example_once_in_the_order_of_the_files(
    records, config, numbers_in, batch_size, first, end
):
    found = []
    for batch in evaluate(records, config, first, end, batch_size):
        assert batch.images.shape == (batch_size, 32, 32, 3)
        assert batch.mask.dtype == np.bool_
        assert numbers_in(batch.images) == batch.examples.tolist()
        assert batch.labels.tolist() == (batch.examples % NUM_CLASSES).tolist()
        found += batch.examples[batch.mask].tolist()
    assert found == list(range(first, end))


def test_evaluation_can_begin_at_any_batch(records, config):
    whole = evaluate(records, config, 2, 13, batch_size=3)
    assert len(whole) == 4
    for start_batch in range(5):
        ours = evaluate(records, config, 2, 13, 3, start_batch)
        assert_equal(ours, whole[start_batch:])


def test_evaluation_crops_as_it_is_told_to(records, config):
    def last_blue(**changes) -> float:
        """Blue tells the row: 4 * 31 at the end of the whole."""
        batch = evaluate(records, config, batch_size=13, **changes)[0]
        blue = batch.images[:, -1, :, 2]
        return 255 * float((blue * STDDEV_OF_BLUE + MEAN_OF_BLUE).mean())

    assert last_blue(eval_crop_fraction=1.0) == pytest.approx(124, abs=4)
    # Rows 8 to 23 of 32, or 16 to 47 of 64.
    assert last_blue(eval_crop_fraction=0.5) == pytest.approx(92, abs=4)
    assert last_blue(
        eval_crop_fraction=0.5, eval_crop="resize_then_crop"
    ) == pytest.approx(94, abs=4)


def test_png_images_are_read_too_also_grey_ones(tmp_path, config, write_tiny_set):
    generator = np.random.default_rng(0)
    colour = generator.integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    grey = generator.integers(0, 256, (32, 32)).astype(np.uint8)
    originals = []
    for pixels in (*colour, grey):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        originals.append(file.getvalue())
    write_tiny_set(tmp_path, originals, [0, 1, 2], "abcd", [3])
    records = dataclasses.replace(open_train(tmp_path), image_format="png")
    expected = np.array([*colour, np.stack([grey] * 3, -1)]) / 255
    expected = (expected - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    (trained,) = train(records, config, global_batch_size=3, train_steps=1)
    (evaluated,) = evaluate(records, config, 0, 3, batch_size=3)
    for batch in (trained, evaluated):
        assert sorted(batch.labels) == [0, 1, 2]
        # A PNG is exact, and at its own size an image isn't resized; float32.
        np.testing.assert_allclose(
            batch.images, expected[batch.labels], rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("read_all", [train, evaluate])
def test_a_corrupt_example_is_replaced_by_the_next_one(
    records, config, numbers_in, read_all
):
    replacements = {3: 4, 7: 9, 8: 9, 12: 0}
    whole = read_all(records, config)
    ours = read_all(records, config, corrupt=frozenset(replacements))
    for batch, before in zip(ours, whole, strict=True):
        wanted = before.examples.tolist()
        expected = [replacements.get(one, one) for one in wanted]
        assert batch.examples.tolist() == expected
        assert numbers_in(batch.images) == expected
        assert batch.labels.tolist() == [one % NUM_CLASSES for one in expected]
        mask = [
            bool(was_real) and one not in replacements
            for one, was_real in zip(wanted, before.mask, strict=True)
        ]
        assert batch.mask.tolist() == mask


@pytest.mark.parametrize("read_all", [train, evaluate])
def test_a_flipped_byte_ends_the_batches_with_an_error(
    tmp_path, records, config, read_all
):
    path = tmp_path / "copy"
    data = bytearray(pathlib.Path(records.paths[1]).read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    paths = (records.paths[0], str(path), records.paths[2])
    with pytest.raises(tf.errors.DataLossError, match=f"byte 0 of {path} is corrupt"):
        read_all(dataclasses.replace(records, paths=paths), config)


@pytest.mark.parametrize("read_all", [train, evaluate])
def test_a_record_that_is_not_there_ends_the_batches_with_an_error(
    records, config, read_all
):
    offsets = records.offset_of_example.copy()
    offsets[7] = 10**6
    corrupt = dataclasses.replace(records, offset_of_example=offsets)
    with pytest.raises(tf.errors.DataLossError, match="byte 1000000 of"):
        read_all(corrupt, config)


def test_alternating_flips_show_both_sides_in_two_epochs(records, config):
    given = {"augmentation": "pad_crop_flip", "shift_fraction": 0.0, "train_steps": 9}
    plain = train(records, config, augmentation="none", train_steps=9)
    ours = train(records, config, flips="alternating", **given)
    epochs_of_sides: dict[int, dict[int, bool]] = {}
    images = zip(
        *(np.concatenate([batch.images for batch in one]) for one in (plain, ours)),
        strict=True,
    )
    examples = np.concatenate([batch.examples for batch in ours])
    for position, (upright, image) in enumerate(images):
        is_flipped = not np.array_equal(image, upright)
        np.testing.assert_array_equal(
            image, upright[:, ::-1] if is_flipped else upright
        )
        epoch, example = position // NUM_EXAMPLES, int(examples[position])
        epochs_of_sides.setdefault(example, {})[epoch] = is_flipped
    # 54 examples are four epochs and a few of the fifth.
    for sides in epochs_of_sides.values():
        assert [sides[epoch] for epoch in range(4)] == [
            *(sides[0], not sides[0], sides[0], not sides[0])
        ]
    assert len({sides[0] for sides in epochs_of_sides.values()}) == 2
