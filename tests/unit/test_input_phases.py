"""Batches over the phases of a run, and in the parts of accumulated gradients."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from data_prep.records import manifest
from data_prep.records.tfrecord import frame_record
from resnet.config import phases
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.data import batches, example_order, input_pipeline, record_files
from resnet.data.augmentation import mixing, random_augment
from resnet.data.input_pipeline import Batch
from resnet.data.record_files import ExampleShard, RecordFiles
from tests.unit.seen_images import pixels

NUM_EXAMPLES = 13
BATCH = 12
PHASES = (
    Phase(name="first", num_steps=2, schedule=None, image_size=48, min_crop_area=0.5),
    Phase(name="plain", num_steps=1, schedule=None, image_size=32, augmentation="none"),
    Phase(
        name="mixed", num_steps=3, schedule=None, image_size=32, mixup=0.3, cutmix=1.0
    ),
    Phase(
        name="last",
        num_steps=2,
        schedule=None,
        image_size=40,
        augmentation="random_crop",
    ),
)
NUM_STEPS = 8


@pytest.fixture(scope="module")
def records(numbered_set) -> RecordFiles:
    return record_files.open_split(manifest.load(str(numbered_set), "train"), "train")


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    config = make_config(NUM_EXAMPLES, "abcd", seed=3, global_batch_size=BATCH)
    return dataclasses.replace(config, phases=PHASES, on_bad_record="skip")


def train(
    records: RecordFiles,
    config: Config,
    rank: int = 0,
    num_ranks: int = 1,
    start_step: int = 0,
    num_parts: int = 1,
) -> list[list[Batch]]:
    """Returns a rank's parts of each step, of arrays."""
    config = dataclasses.replace(config, accumulation_steps=num_parts)
    shard = ExampleShard(records, rank, num_ranks, records.num_examples)
    found = [
        Batch(*(tensor.numpy() for tensor in batch))
        for batch in batches.training(config, shard, num_ranks, start_step, 2)
    ]
    assert len(found) % num_parts == 0
    return [found[i : i + num_parts] for i in range(0, len(found), num_parts)]


def join(parts: list[Batch]) -> Batch:
    return Batch(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def assert_equal(one: Batch, other: Batch) -> None:
    for values, expected in zip(one, other, strict=True):
        np.testing.assert_array_equal(values, expected)


@pytest.fixture(scope="module")
def whole(records, config) -> list[Batch]:
    """The global batch of each step."""
    return [join(parts) for parts in train(records, config)]


def test_each_step_is_as_its_phase_has_it(records, config, whole):
    assert len(whole) == NUM_STEPS
    first_step = 0
    for phase in PHASES:
        end = first_step + phase.num_steps
        # The same steps of a run that has this phase alone.
        alone = (dataclasses.replace(phase, num_steps=end),)
        same = dataclasses.replace(config, phases=alone)
        found = train(records, same, start_step=first_step)
        for batch, (expected,) in zip(whole[first_step:end], found, strict=True):
            assert batch.images.shape == (BATCH, *[phase.image_size] * 2, 3)
            assert batch.mix_weight.dtype == np.float32
            assert_equal(batch, expected)
        first_step = end


def test_the_order_continues_from_phase_to_phase(config, whole):
    for step, batch in enumerate(whole):
        expected = input_pipeline.examples_of_micro_batch(
            step, config.seed, 0, 1, BATCH, NUM_EXAMPLES
        )
        np.testing.assert_array_equal(batch.examples, expected)
    everything = np.concatenate([batch.examples for batch in whole])
    for epoch in np.split(everything[: 7 * NUM_EXAMPLES], 7):
        assert sorted(epoch) == list(range(NUM_EXAMPLES))


def test_only_the_phases_that_say_so_are_mixed(whole):
    for step, batch in enumerate(whole):
        is_mixed = phases.at(PHASES, step).name == "mixed"
        assert bool((batch.mix_weight < 1).any()) == is_mixed
        np.testing.assert_array_equal(batch.mix_weight[::2], batch.mix_weight[1::2])


def seeds_of(config: Config, step: int, examples: np.ndarray) -> np.ndarray:
    """The seeds of a step's examples, of the whole global batch."""
    epoch = np.arange(step * BATCH, (step + 1) * BATCH) // NUM_EXAMPLES
    stream = input_pipeline._AUGMENTATION_STREAM
    return np.stack([example_order.mix_seed(config.seed, stream, epoch), examples], 1)


def test_a_batch_is_mixed_by_the_seeds_of_its_examples(records, config, whole):
    plain = dataclasses.replace(PHASES[2], num_steps=5, mixup=0.0, cutmix=0.0)
    unmixed = train(records, dataclasses.replace(config, phases=(plain,)), start_step=3)
    for step, (batch,) in zip((3, 4), unmixed, strict=True):
        seeds = tf.constant(seeds_of(config, step, batch.examples))
        images, mix_weight = mixing.mix_pairs(batch.images, seeds, 0.3, 1.0)
        # Only fused multiplications may round otherwise.
        np.testing.assert_allclose(whole[step].images, images, rtol=0, atol=2e-6)
        np.testing.assert_allclose(
            whole[step].mix_weight, mix_weight, rtol=0, atol=1e-6
        )


def test_random_augment_takes_the_seeds_of_the_examples(records, config):
    without, phase = (
        Phase(name="one", num_steps=4, schedule=None, image_size=32, random_augment=one)
        for one in (0.0, 9.0)
    )
    (((plain,),), ((ours,),)) = (
        train(records, dataclasses.replace(config, phases=(one,)), start_step=3)
        for one in (without, phase)
    )
    seeds = tf.constant(seeds_of(config, 3, plain.examples))
    for number in range(BATCH):
        # Rounded; halves down.
        values = np.clip(pixels(plain.images[number]) + 0.499, 0, 255).astype(np.uint8)
        expected = random_augment.augment(tf.constant(values), 9.0, seeds[number])
        errors = abs(pixels(ours.images[number]) - expected.numpy())
        # Fused multiplications may round otherwise.
        assert np.mean(errors > 0.01) < 0.01


def test_starting_at_a_step_is_the_same_as_running_there(records, config, whole):
    # In the third phase; below, in the first one.
    ours = train(records, config, start_step=4)
    assert len(ours) == NUM_STEPS - 4
    for parts, expected in zip(ours, whole[4:], strict=True):
        assert_equal(join(parts), expected)


def test_nothing_is_left_after_the_last_phase(records, config):
    assert train(records, config, start_step=NUM_STEPS, num_parts=2) == []


@pytest.mark.parametrize(
    ("num_ranks", "num_parts", "start_step"),
    [(1, 6, 1), (2, 3, 5), (3, 2, 6)],
)
def test_the_parts_of_all_ranks_join_to_the_global_batch(
    records, config, whole, num_ranks, num_parts, start_step
):
    ranks = [
        train(records, config, rank, num_ranks, start_step, num_parts)
        for rank in range(num_ranks)
    ]
    size = BATCH // num_ranks // num_parts
    assert all(len(part.labels) == size for part in ranks[-1][0])
    assert len(ranks[0]) == NUM_STEPS - start_step
    for parts, expected in zip(
        zip(*ranks, strict=True), whole[start_step:], strict=True
    ):
        assert_equal(join([part for rank in parts for part in rank]), expected)


def test_the_ranks_of_a_node_join_to_the_batch_of_their_own_shards(records, config):
    # --shard_by=file: this node has the shards 1 and 2, of 8 examples, for 2 of 4
    # ranks; another one has the rest.
    mine = records.only_files([1, 2])
    num_parts = 3
    unmixed = tuple(
        dataclasses.replace(phase, num_steps=NUM_STEPS // 2, image_size=8)
        for phase in (PHASES[1], PHASES[3])
    )
    small = dataclasses.replace(
        config, global_batch_size=24, accumulation_steps=3, phases=unmixed
    )
    found = []
    for rank in range(2):
        shard = ExampleShard(mine, rank, 2, NUM_EXAMPLES)
        parts = batches.training(small, shard, 4, 0, 2)
        found.append([Batch(*(one.numpy() for one in part)) for part in parts])
    assert all(len(part.labels) == 2 for part in found[0])
    examples = np.array(
        [[part.examples for part in of_rank] for of_rank in found]
    ).reshape(2, NUM_STEPS, num_parts * 2)
    # 12 examples in each step: positions 0 to 5 are rank 0's, 6 to 11 rank 1's.
    in_order = examples.transpose(1, 0, 2).reshape(-1)
    for epoch in np.split(in_order, 12):
        assert sorted(epoch) == list(range(8))


@pytest.mark.parametrize(("num_parts", "chosen"), [(1, PHASES[::2]), (3, PHASES[1::2])])
def test_a_corrupt_record_is_skipped_in_whatever_phase_it_is_read(
    records, config, put_record, num_parts, chosen
):
    # Two phases of four steps; the rest is as in `PHASES`.
    chosen = tuple(dataclasses.replace(phase, num_steps=4) for phase in chosen)
    config = dataclasses.replace(config, phases=chosen)
    corrupt = records
    for number in (2, 9):
        corrupt = put_record(corrupt, number, frame_record(b"\xff" * 20))
    whole = [join(parts) for parts in train(corrupt, config, num_parts=num_parts)]
    assert len(whole) == NUM_STEPS
    replacements = {2: 3, 9: 10}
    for step, batch in enumerate(whole):
        wanted = input_pipeline.examples_of_micro_batch(
            step, config.seed, 0, 1, BATCH, NUM_EXAMPLES
        ).tolist()
        expected = [replacements.get(one, one) for one in wanted]
        assert batch.examples.tolist() == expected
        assert batch.mask.tolist() == [one not in replacements for one in wanted]
        assert batch.labels.tolist() == [one % 4 for one in expected]
        assert batch.images.shape[1] == phases.at(chosen, step).image_size
    # Begun here, the corruption is first met in a later phase.
    ours = train(corrupt, config, start_step=5, num_parts=num_parts)
    for parts, expected in zip(ours, whole[5:], strict=True):
        assert_equal(join(parts), expected)
