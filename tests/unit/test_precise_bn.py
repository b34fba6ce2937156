"""The statistics of batch normalization over some batches, against NumPy."""

import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.records import manifest
from resnet.config.config import Config
from resnet.data import batches, record_files
from resnet.data.input_pipeline import Reading
from resnet.data.record_files import ExampleShard, RecordFiles
from resnet.distributed.communicator import Communicator
from resnet.evaluation.precise_bn import PreciseBN
from resnet.hardware.placement import ProcessInfo
from resnet.models import layers
from resnet.models.options import NormOptions
from resnet.runtime.preemption import Preempted
from tests.unit.encoded_images import encode
from tests.unit.jobs import job
from tests.unit.one_of_ranks import OneOfRanks

ALONE = Communicator(ProcessInfo())
NUM_EXAMPLES = 12
DECAY = 0.75
EPSILON = 1e-5  # Of batch normalization.
# Convolutions in float32, whose channels NumPy's float64 has without rounding.
TOLERANCE = 2e-4


class Statistics(NamedTuple):
    means: list[np.ndarray]
    variances: list[np.ndarray]


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    """Two phases of 6 and 4 steps, on 12 examples in batches of 6."""
    config = make_config(
        NUM_EXAMPLES,
        global_batch_size=6,
        train_steps=10,
        batch_norm_momentum=DECAY,
        recalibration_batches=3,
    )
    (phase,) = config.phases
    first = dataclasses.replace(
        phase, name="first", num_steps=6, augmentation="random_shift"
    )
    second = dataclasses.replace(phase, name="second", num_steps=4, augmentation="none")
    return dataclasses.replace(config, phases=(first, second))


@pytest.fixture(scope="module")
def records(tmp_path_factory, write_tiny_set) -> RecordFiles:
    images = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, 32, 32, 3))
    jpegs = [
        encode(Image.fromarray(pixels), "JPEG") for pixels in images.astype(np.uint8)
    ]
    folder = tmp_path_factory.mktemp("records")
    labels = [index % 3 for index in range(NUM_EXAMPLES)]
    write_tiny_set(folder, jpegs, labels, "abc", [5, 7])
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


@pytest.fixture
def model() -> keras.Model:
    """Two normalized convolutions of one pixel, then a classifier."""
    inputs = keras.Input((32, 32, 3))
    x = layers.ConvNorm(4, 1, 1, 1, "one", NormOptions(momentum=DECAY))(inputs)
    x = layers.ConvNorm(5, 1, 2, 2, "two", NormOptions(momentum=DECAY, relu=False))(x)
    made = keras.Model(inputs, layers.Classifier(3, 3, "classifier")(x))
    generator = np.random.default_rng(3)
    for variable in made.variables:
        variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    return made


def averages(model: keras.Model) -> Statistics:
    found = {one.path: one.numpy() for one in model.non_trainable_variables}
    names = ("one", "two")
    return Statistics(
        [found[f"{name}/moving_mean"] for name in names],
        [found[f"{name}/moving_variance"] for name in names],
    )


def by_hand(model: keras.Model, seen: list[np.ndarray]) -> Statistics:
    """What the definition says, of the images of each batch."""
    own = {one.path: one.numpy().astype(np.float64) for one in model.variables}
    found: list[list[np.ndarray]] = [[], []]  # Of each layer, a row for each batch.
    for images in seen:
        x = images.astype(np.float64)
        for layer, name in enumerate(("one", "two")):
            x = x[:, :: layer + 1, :: layer + 1] @ own[f"{name}/kernel"][0, 0]
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            count = x.size // x.shape[-1]
            found[layer].append(np.stack([mean, variance * count / (count - 1)]))
            x = (x - mean) / np.sqrt(variance + EPSILON)
            x = np.maximum(x * own[f"{name}/gamma"] + own[f"{name}/beta"], 0)
    means, variances = [], []
    for rows in found:
        mean, variance = np.mean(rows, axis=0)
        square = np.mean([row[1] + row[0] ** 2 for row in rows], axis=0)
        assert (square - mean**2 > variance).all()  # Or the tests couldn't tell.
        means.append(mean)
        variances.append(square - mean**2)
    return Statistics(means, variances)


@pytest.fixture(scope="module")
def images_of(config, records) -> Callable[[str, int], list[np.ndarray]]:
    """A function of a phase and a batch size.

    It returns the first three batches that a run of that phase alone sees on one rank.
    """

    @functools.cache
    def images_of(phase: str, batch_size: int) -> list[np.ndarray]:
        (chosen,) = (one for one in config.phases if one.name == phase)
        alone = dataclasses.replace(
            config, phases=(chosen,), global_batch_size=batch_size
        )
        share = ExampleShard(records, 0, 1, NUM_EXAMPLES)
        found = batches.train_batches(Reading.of_run(alone, share, 1, 2))
        return [next(found).images.numpy() for _ in range(3)]

    return images_of


def recalibrate(
    model: keras.Model,
    records: RecordFiles,
    config: Config,
    step: int = 10,
    num_ranks: int = 2,
    communicator: Communicator = ALONE,
) -> Statistics:
    shard = ExampleShard(
        records, communicator.rank, communicator.num_ranks, NUM_EXAMPLES
    )
    PreciseBN(model, shard, config, job(communicator)).apply(step, num_ranks)
    return averages(model)


def assert_close(ours: Statistics, expected: Statistics, tolerance: float) -> None:
    for kind, values in expected._asdict().items():
        for layer, (own, other) in enumerate(
            zip(getattr(ours, kind), values, strict=True)
        ):
            np.testing.assert_allclose(
                own, other, rtol=tolerance, atol=tolerance, err_msg=f"{kind} {layer}"
            )


@pytest.mark.parametrize(
    ("step", "phase", "num_ranks", "accumulation_steps", "batch_size"),
    [
        # The phase is that of the last step.
        (6, "first", 2, 1, 3),
        (7, "second", 2, 1, 3),
        # A batch is what a rank normalizes together, of the run's ranks.
        (10, "second", 1, 1, 6),
        (10, "second", 1, 2, 3),
    ],
)
def test_they_are_those_of_training_batches(
    model,
    records,
    config,
    images_of,
    step,
    phase,
    num_ranks,
    accumulation_steps,
    batch_size,
):
    changed = dataclasses.replace(config, accumulation_steps=accumulation_steps)
    before = [variable.numpy() for variable in model.trainable_variables]
    expected = by_hand(model, images_of(phase, batch_size))
    ours = recalibrate(model, records, changed, step, num_ranks)
    assert_close(ours, expected, TOLERANCE)
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_the_batch_size_of_evaluation_and_the_averages_before_dont_matter(
    model, records, config
):
    expected = recalibrate(model, records, config)
    for variable in model.non_trainable_variables:
        variable.assign(variable + 7)
    ours = recalibrate(model, records, dataclasses.replace(config, eval_batch_size=1))
    assert_close(ours, expected, 0)


def test_the_ranks_share_the_batches_and_find_the_same(model, records, config):
    num_ranks = 4  # One more than there are batches.
    alone = OneOfRanks(0, 1)
    recalibrate(model, records, config, communicator=alone)
    total = 0.0
    for rank in range(num_ranks):
        communicator = OneOfRanks(rank, num_ranks)
        recalibrate(model, records, config, communicator=communicator)
        total = total + communicator.values
    # The same numbers in another order, in float64.
    np.testing.assert_allclose(total, alone.values, rtol=1e-12)


def test_a_preempted_estimate_ends_between_two_batches(
    model, records, config, monkeypatch
):
    signals = SimpleNamespace(seen="")
    shard = ExampleShard(records, 0, 1, NUM_EXAMPLES)
    ours = PreciseBN(model, shard, config, job(signals=signals))
    done = []
    statistics = ours._statistics

    def stop_in_the_second(images: tf.Tensor) -> tf.Tensor:
        done.append(images)
        if len(done) == 2:
            signals.seen = "SIGTERM"
        return statistics(images)

    monkeypatch.setattr(ours, "_statistics", stop_in_the_second)
    with pytest.raises(Preempted, match="stopped while computing PreciseBN"):
        ours.apply(10, 2)
    assert len(done) == 2  # Of 3.


def test_a_network_without_normalization_reads_nothing(records, config, monkeypatch):
    monkeypatch.setattr(batches, "train_batches", None)
    inputs = keras.Input((32, 32, 3))
    model = keras.Model(inputs, layers.Classifier(3, 3, "classifier")(inputs))
    shard = ExampleShard(records, 0, 1, NUM_EXAMPLES)
    PreciseBN(model, shard, config, job()).apply(10, 2)


def test_equal_images_have_no_negative_variance(model, records, config, monkeypatch):
    equal = SimpleNamespace(images=tf.fill([3, 32, 32, 3], 1000.0))
    monkeypatch.setattr(batches, "train_batches", lambda *_, **__: iter([equal] * 3))
    for variance in recalibrate(model, records, config).variances:
        assert (variance >= 0).all()
        # Of means around 3,000, to the rounding of float32.
        assert (variance < 10).all()
