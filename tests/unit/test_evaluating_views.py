"""Several views and several networks, counted exactly, against NumPy."""

import dataclasses
import io
import itertools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.records import manifest
from resnet.config.config import Config
from resnet.data import record_files
from resnet.data.example_shard import ExampleShard
from resnet.data.record_files import RecordFiles
from resnet.distributed.communicator import Communicator
from resnet.evaluation.evaluator import Evaluator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime.preemption import Preempted
from tests.unit.jobs import job
from tests.unit.one_of_ranks import OneOfRanks

ALONE = Communicator(ProcessInfo())
NUM_EXAMPLES = 11
ALL_COUNTED = np.array([0, 0, 0, NUM_EXAMPLES, 0])  # As all ranks' sums.
NUM_CLASSES = 8
LABEL_SMOOTHING = 0.25
SIZE = 32
MEAN = np.array([0.485, 0.456, 0.406])
STDDEV = np.array([0.229, 0.224, 0.225])
LABELS = np.array([3 * i % NUM_CLASSES for i in range(NUM_EXAMPLES)])
# Sums of 3,072 products in float32, with which NumPy has no rounding.
LOSS_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    config = make_config(class_names="abcdefgh", label_smoothing=LABEL_SMOOTHING)
    return dataclasses.replace(config, eval_crop_fraction=0.8)


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    """Noise of 40 x 52: its shorter side is what 32 / 0.8 makes of it."""
    generator = np.random.default_rng(0)
    encoded = []
    for _ in range(NUM_EXAMPLES):
        file = io.BytesIO()
        pixels = generator.integers(0, 256, (40, 52, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(file, "JPEG")
        encoded.append(file.getvalue())
    return encoded


@pytest.fixture(scope="module")
def records(tmp_path_factory, pictures, config, write_tiny_set) -> RecordFiles:
    folder = tmp_path_factory.mktemp("records")
    names = config.class_names
    write_tiny_set(folder, pictures, LABELS.tolist(), names, [6, 5], split="validation")
    record_set = manifest.load(str(folder), "validation")
    return record_files.open_split(record_set, "validation")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    inputs = keras.Input((SIZE, SIZE, 3))
    logits = keras.layers.Dense(NUM_CLASSES)(keras.layers.Flatten()(inputs))
    return keras.Model(inputs, logits)


def set_weights(model: keras.Model, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(generator.normal(size=variable.shape) / 30)


def crops_of(pictures: list[bytes], views: str) -> np.ndarray:
    """What the network is to see, `[num_examples, views, 32, 32, 3]`."""
    decoded = np.array([tf.io.decode_jpeg(one).numpy() for one in pictures])
    images = (decoded / 255 - MEAN) / STDDEV
    begins = [(4, 10)]
    if views in ("five_crops", "ten_crops"):
        begins = [(0, 0), (0, 20), (8, 0), (8, 20), (4, 10)]
    found = [images[:, y : y + SIZE, x : x + SIZE] for y, x in begins]
    if views in ("flip", "ten_crops"):
        found += [one[:, :, ::-1] for one in found]
    return np.stack(found, axis=1)


def probabilities(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """The mean over the views, `[num_examples, num_classes]`."""
    kernel, bias = (one.numpy().astype(np.float64) for one in model.variables)
    powers = np.exp(images.reshape(*images.shape[:2], -1) @ kernel + bias)
    return (powers / powers.sum(-1, keepdims=True)).mean(1)


class Expected(NamedTuple):
    top1: int
    top5: int
    loss: float


def expected_of(mean: np.ndarray) -> Expected:
    """Those right, those right among five, and the summed loss."""
    order = np.argsort(-mean, axis=1)
    logarithms = np.log(mean)
    labels = LABELS[: len(mean)]
    own = logarithms[np.arange(len(mean)), labels]
    losses = -(1 - LABEL_SMOOTHING) * own - LABEL_SMOOTHING * logarithms.mean(1)
    return Expected(
        int((order[:, 0] == labels).sum()),
        int((order[:, :5] == labels[:, np.newaxis]).any(1).sum()),
        float(losses.sum()),
    )


def check(result, expected: Expected) -> None:
    assert result.count == NUM_EXAMPLES
    assert result.top1 == expected.top1 / NUM_EXAMPLES
    assert result.top5 == expected.top5 / NUM_EXAMPLES
    assert result.loss * NUM_EXAMPLES == pytest.approx(
        expected.loss, rel=LOSS_TOLERANCE
    )


@pytest.fixture(scope="module")
def evaluator(model, records, config) -> Callable[..., Evaluator]:
    """A function that returns the evaluator of one of some ranks."""

    def evaluator(
        communicator, views, batch_size=200, own=records, signals=None
    ) -> Evaluator:
        share = ExampleShard(
            own, communicator.rank, communicator.num_ranks, own.num_examples
        )
        changed = dataclasses.replace(
            config,
            eval_batch_size=batch_size,
            eval_crop="resize_then_crop",
            eval_views=views,
        )
        return Evaluator(model, share, changed, job(communicator, signals))

    return evaluator


VIEWS = ("center", "flip", "five_crops", "ten_crops")


@pytest.mark.parametrize("batch_size", [1, 25, 1000])
@pytest.mark.parametrize("views", VIEWS)
def test_views_are_averaged_and_each_example_counts_once(
    model, evaluator, pictures, views, batch_size
):
    set_weights(model, 1)
    expected = expected_of(probabilities(model, crops_of(pictures, views)))
    check(evaluator(ALONE, views, batch_size).evaluate(), expected)


def test_mean_probabilities_have_the_loss_of_probabilities(
    model, records, config, pictures
):
    (phase,) = config.phases
    binary = dataclasses.replace(phase, loss="binary_cross_entropy")
    config = dataclasses.replace(config, phases=(binary,), eval_crop="resize_then_crop")
    share = ExampleShard(records, 0, 1, NUM_EXAMPLES)
    set_weights(model, 1)
    expected = expected_of(probabilities(model, crops_of(pictures, "flip")))
    flipped = Evaluator(
        model, share, dataclasses.replace(config, eval_views="flip"), job()
    ).evaluate()
    check(flipped, expected)
    assert "views flip" in str(flipped)
    alone = Evaluator(model, share, config, job())
    ensemble = alone.new_ensemble()
    alone.add_to(ensemble)
    expected = expected_of(probabilities(model, crops_of(pictures, "center")))
    check(alone.evaluate_ensemble(ensemble), expected)
    # The logits of one network and one view have the loss of the training.
    own = alone.evaluate().loss * NUM_EXAMPLES
    assert abs(own - expected.loss) > 10 * LOSS_TOLERANCE * own


def test_the_views_differ(model, pictures):
    # Or the tests could not tell them apart.
    set_weights(model, 1)
    found = [
        expected_of(probabilities(model, crops_of(pictures, one))).loss for one in VIEWS
    ]
    for one, other in itertools.pairwise(found):
        assert abs(one - other) > 10 * LOSS_TOLERANCE * one


@pytest.mark.parametrize("num_ranks", [3])
def test_the_ranks_together_count_each_example_once(
    model, evaluator, pictures, num_ranks
):
    set_weights(model, 1)
    total = np.zeros(5)
    for rank in range(num_ranks):
        communicator = OneOfRanks(rank, num_ranks, ALL_COUNTED)
        evaluator(communicator, "ten_crops", 60).evaluate()
        total += communicator.values
    expected = expected_of(probabilities(model, crops_of(pictures, "ten_crops")))
    assert total[:2].tolist() == [expected.top1, expected.top5]
    assert total[2] == pytest.approx(expected.loss, rel=LOSS_TOLERANCE)
    assert total[3:].tolist() == [NUM_EXAMPLES, 0]


@pytest.mark.parametrize(
    ("views", "num_batches"),
    [("center", 2), ("flip", 3), ("five_crops", 6), ("ten_crops", 11)],
)
def test_the_batch_size_is_of_images_that_the_network_sees(
    evaluator, views, num_batches
):
    # 10, 5, 2 and 1 images a batch.
    assert evaluator(ALONE, views, 10).num_batches == num_batches


@pytest.mark.parametrize("views", ["center", "five_crops"])
@pytest.mark.parametrize("batch_size", [10, 1000])
def test_an_ensemble_is_the_mean_of_its_networks(
    model, evaluator, pictures, views, batch_size
):
    ours = evaluator(ALONE, views, batch_size)
    ensemble = ours.new_ensemble()
    images = crops_of(pictures, views)
    of_networks = []
    for seed, penalty in ((1, 2.0), (2, 4.0), (3, 9.0)):
        set_weights(model, seed)
        ours.add_to(ensemble, penalty)
        of_networks.append(probabilities(model, images))
    expected = expected_of(np.mean(of_networks, axis=0))
    assert expected.top5 != expected_of(of_networks[-1]).top5
    with_penalty = expected.loss + 5.0 * NUM_EXAMPLES
    check(ours.evaluate_ensemble(ensemble), expected._replace(loss=with_penalty))


def test_an_ensemble_of_one_is_that_network(model, evaluator):
    set_weights(model, 1)
    ours = evaluator(ALONE, "flip", 6)
    ensemble = ours.new_ensemble()
    ours.add_to(ensemble, 1.5)
    alone, together = ours.evaluate(1.5), ours.evaluate_ensemble(ensemble)
    assert together.loss == pytest.approx(alone.loss, rel=1e-6)
    assert dataclasses.replace(together, loss=0) == dataclasses.replace(alone, loss=0)


# With 2 examples, one of the ranks has none.
@pytest.mark.parametrize(("num_ranks", "num_examples"), [(2, 11), (3, 2)])
def test_the_ranks_of_an_ensemble_together_count_each_example_once(
    model, evaluator, records, pictures, num_ranks, num_examples
):
    own = dataclasses.replace(
        records,
        file_of_example=records.file_of_example[:num_examples],
        offset_of_example=records.offset_of_example[:num_examples],
        number_of_example=records.number_of_example[:num_examples],
    )
    images = crops_of(pictures[:num_examples], "center")
    total, all_counted = np.zeros(5), np.array([0, 0, 0, num_examples, 0])
    for rank in range(num_ranks):
        communicator = OneOfRanks(rank, num_ranks, all_counted)
        ours = evaluator(communicator, "center", 4, own)
        ensemble = ours.new_ensemble()
        of_networks = []
        for seed in (1, 2):
            set_weights(model, seed)
            ours.add_to(ensemble)
            of_networks.append(probabilities(model, images))
        ours.evaluate_ensemble(ensemble)
        total += communicator.values
    expected = expected_of(np.mean(of_networks, axis=0))
    assert total[:2].tolist() == [expected.top1, expected.top5]
    assert total[2] == pytest.approx(expected.loss, rel=LOSS_TOLERANCE)
    assert total[3:].tolist() == [num_examples, 0]


def test_damaged_examples_are_left_out_of_an_ensemble(
    model, records, config, pictures, put_record
):
    for number in (5, 10):
        records = put_record(records, number, b"no record")
    share = ExampleShard(records, 0, 1, NUM_EXAMPLES)
    changed = dataclasses.replace(config, eval_batch_size=4, on_bad_record="skip")
    ours = Evaluator(model, share, changed, job())
    ensemble = ours.new_ensemble()
    for seed in (1, 2):
        set_weights(model, seed)
        ours.add_to(ensemble)
    result = ours.evaluate_ensemble(ensemble)
    assert (result.count, result.skipped_records) == (9, 2)


def test_a_preempted_evaluation_ends_between_two_batches(evaluator):
    class Signals:
        seen = ""

    signals = Signals()
    done: list[int] = []

    def report(number: int) -> None:
        done.append(number)
        if number == 2:
            signals.seen = "SIGTERM"

    ours = evaluator(ALONE, "center", 2, signals=signals)
    with pytest.raises(Preempted, match="stopped during an evaluation"):
        ours.evaluate(report=report)
    assert done == [1, 2]
    signals.seen = ""
    assert ours.evaluate().count == NUM_EXAMPLES


def test_one_that_is_asked_when_it_is_done_has_a_result(evaluator):
    class Signals:
        seen = ""

    signals = Signals()

    def report(number: int) -> None:
        if number == 6:  # Of 6.
            signals.seen = "SIGTERM"

    ours = evaluator(ALONE, "center", 2, signals=signals)
    assert ours.evaluate(report=report).count == NUM_EXAMPLES
