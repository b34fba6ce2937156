"""Each example counts once, as in NumPy, for any views, batch sizes and ranks."""

import dataclasses
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep.records import manifest
from resnet.base.errors import UserError
from resnet.config.config import Config
from resnet.data import record_files
from resnet.data.record_files import ExampleShard, RecordFiles
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.evaluation import top_classes
from resnet.evaluation.evaluator import Ensemble, Evaluator, Result, in_top
from resnet.evaluation.top_classes import TopClasses
from resnet.hardware.placement import ProcessInfo
from resnet.metrics.class_metrics import ByClass
from resnet.runtime.preemption import Preempted
from tests.unit.encoded_images import encode
from tests.unit.jobs import job
from tests.unit.one_of_ranks import OneOfRanks

ALONE = Communicator(ProcessInfo())
NUM_EXAMPLES = 11
NUM_CLASSES = 8
LABEL_SMOOTHING = 0.25
SIZE = 32
MEAN = np.array([0.485, 0.456, 0.406])
STDDEV = np.array([0.229, 0.224, 0.225])
LABELS = np.array([3 * i % NUM_CLASSES for i in range(NUM_EXAMPLES)])
# Sums of 3,072 products in float32, with which NumPy has no rounding.
LOSS_TOLERANCE = 1e-4


def test_a_label_without_a_finite_logit_is_never_in_the_top():
    for bad in (np.nan, np.inf, -np.inf):
        logits = tf.constant([[bad, 1.0, 2.0], [1.0, 3.0, 2.0]], tf.float32)
        assert in_top(logits, tf.constant([0, 1]), 3).numpy().tolist() == [False, True]
    all_nan = tf.fill([4, 6], np.float32(np.nan))
    assert not in_top(all_nan, tf.constant([0, 1, 2, 5]), 5).numpy().any()


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    config = make_config(
        class_names="abcdefgh", label_smoothing=LABEL_SMOOTHING, weight_decay=0.5
    )
    return dataclasses.replace(
        config, eval_crop_fraction=0.8, eval_crop="resize_then_crop"
    )


@pytest.fixture(scope="module")
def jpegs() -> list[bytes]:
    """Noise of 40 x 52: its shorter side is what 32 / 0.8 makes of it."""
    images = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, 40, 52, 3))
    return [
        encode(Image.fromarray(pixels), "JPEG") for pixels in images.astype(np.uint8)
    ]


@pytest.fixture(scope="module")
def records(tmp_path_factory, jpegs, config, write_tiny_set) -> RecordFiles:
    folder = tmp_path_factory.mktemp("records")
    names = config.class_names
    write_tiny_set(folder, jpegs, LABELS.tolist(), names, [6, 5], split="validation")
    record_set = manifest.load(str(folder), "validation")
    return record_files.open_split(record_set, "validation")


@pytest.fixture
def model() -> keras.Model:
    """A matrix on all pixels."""
    inputs = keras.Input((SIZE, SIZE, 3))
    logits = keras.layers.Dense(NUM_CLASSES)(keras.layers.Flatten()(inputs))
    model = keras.Model(inputs, logits)
    set_weights(model, 1)
    return model


def set_weights(model: keras.Model, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(generator.normal(size=variable.shape) / 30)


def crops_of(jpegs: list[bytes], views: str = "center") -> np.ndarray:
    """What the network is to see, `[num_examples, views, 32, 32, 3]`."""
    decoded = np.array([tf.io.decode_jpeg(jpeg).numpy() for jpeg in jpegs])
    images = (decoded / 255 - MEAN) / STDDEV
    begins = [(4, 10)]
    if views in ("five_crops", "ten_crops"):
        begins = [(0, 0), (0, 20), (8, 0), (8, 20), (4, 10)]
    crops = [images[:, y : y + SIZE, x : x + SIZE] for y, x in begins]
    if views in ("flip", "ten_crops"):
        crops += [crop[:, :, ::-1] for crop in crops]
    return np.stack(crops, axis=1)


def probabilities(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """The mean over the views, `[num_examples, num_classes]`."""
    kernel, bias = (one.numpy().astype(np.float64) for one in model.variables)
    powers = np.exp(images.reshape(*images.shape[:2], -1) @ kernel + bias)
    return (powers / powers.sum(-1, keepdims=True)).mean(1)


class Expected(NamedTuple):
    """What NumPy finds of each example, `[num_examples]`."""

    top1: np.ndarray
    top5: np.ndarray
    loss: np.ndarray
    predicted: np.ndarray

    def sums(self, kept: slice | list[int] = slice(None)) -> list[float]:
        """The numbers right in the top 1 and 5, and the summed loss."""
        return [float(values[kept].sum()) for values in self[:3]]

    def by_class(self, kept: slice | list[int]) -> list[np.ndarray]:
        """The numbers of right, actual and predicted images of each class."""
        labels, predicted = LABELS[: len(self.loss)][kept], self.predicted[kept]
        classes = (labels[labels == predicted], labels, predicted)
        return [np.bincount(values, minlength=NUM_CLASSES) for values in classes]


def expected_of(mean: np.ndarray) -> Expected:
    order = np.argsort(-mean, axis=1)
    logarithms = np.log(mean)
    labels = LABELS[: len(mean)]
    own = logarithms[np.arange(len(mean)), labels]
    losses = -(1 - LABEL_SMOOTHING) * own - LABEL_SMOOTHING * logarithms.mean(1)
    in_five = (order[:, :5] == labels[:, np.newaxis]).any(1)
    return Expected(order[:, 0] == labels, in_five, losses, order[:, 0])


def check(
    result: Result, expected: Expected, kept: slice | list[int] = slice(None)
) -> None:
    top1, top5, loss = expected.sums(kept)
    count = len(expected.loss[kept])
    assert (result.count, result.skipped_records) == (count, NUM_EXAMPLES - count)
    assert (result.top1, result.top5) == (top1 / count, top5 / count)
    np.testing.assert_array_equal(result.by_class, expected.by_class(kept))
    assert result.cross_entropy * count == pytest.approx(loss, rel=LOSS_TOLERANCE)


@pytest.fixture
def evaluator(model, records, config) -> Callable[..., Evaluator]:
    """A function that returns the evaluator of one of some ranks."""

    def evaluator(
        communicator=ALONE, own=records, signals=None, **changes
    ) -> Evaluator:
        shard = ExampleShard(
            own, communicator.rank, communicator.num_ranks, own.num_examples
        )
        changed = dataclasses.replace(config, **changes)
        return Evaluator(model, shard, changed, job(communicator, signals))

    return evaluator


# 10 images that the network sees are 10, 5, 2 and 1 examples.
@pytest.mark.parametrize(
    ("views", "batch_size", "num_batches"),
    [
        *(("center", 10, 2), ("flip", 10, 3), ("five_crops", 10, 6)),
        *(("ten_crops", 10, 11), ("ten_crops", 1000, 1)),
    ],
)
def test_views_are_averaged_and_each_example_counts_once(
    model, evaluator, jpegs, views, batch_size, num_batches
):
    expected = expected_of(probabilities(model, crops_of(jpegs, views)))
    ours = evaluator(eval_views=views, eval_batch_size=batch_size)
    assert ours.num_batches == num_batches
    reported: list[int] = []
    check(ours.evaluate(report=reported.append), expected)
    assert reported == list(range(1, ours.num_batches + 1))
    assert ours._count_batch.experimental_get_tracing_count() == 1


def test_evaluating_again_gives_the_same_and_sees_new_weights(model, evaluator):
    ours = evaluator()
    first = ours.evaluate()
    penalized = ours.evaluate(5.0)
    assert penalized.loss - first.loss == pytest.approx(5.0, rel=1e-6)
    assert dataclasses.replace(penalized, loss=first.loss) == first
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable.value))
    zero = ours.evaluate()
    # All classes equal: those of the first class are right. Labels 0 are examples 0, 8.
    assert zero.top1 == 2 / NUM_EXAMPLES
    assert zero.loss == pytest.approx(np.log(NUM_CLASSES), rel=1e-6)


def test_mean_probabilities_have_the_loss_of_probabilities(
    model, evaluator, config, jpegs
):
    binary = dataclasses.replace(config.phases[0], loss="binary_cross_entropy")
    flipped = evaluator(phases=(binary,), eval_views="flip").evaluate()
    check(flipped, expected_of(probabilities(model, crops_of(jpegs, "flip"))))
    assert "views flip" in str(flipped)
    alone = evaluator(phases=(binary,))
    ensemble = alone.new_ensemble()
    alone.add_to(ensemble)
    expected = expected_of(probabilities(model, crops_of(jpegs)))
    check(alone.evaluate_ensemble(ensemble), expected)
    # The logits of one network and one view have the loss of the training.
    own = alone.evaluate().loss * NUM_EXAMPLES
    assert abs(own - expected.sums()[2]) > 10 * LOSS_TOLERANCE * own


def first_of(records: RecordFiles, num_examples: int) -> RecordFiles:
    return dataclasses.replace(
        records,
        file_of_example=records.file_of_example[:num_examples],
        index=records.index[:num_examples],
        number_of_example=records.number_of_example[:num_examples],
    )


# What the ranks sum: the numbers by class, then these, with the skipped ones last.
OF_CLASSES = 3 * NUM_CLASSES


def counted(num_examples: int) -> np.ndarray:
    """Returns the sums of all ranks with that number of examples, and all else 0."""
    sums = np.zeros(OF_CLASSES + 6)
    sums[-2] = num_examples
    return sums


# With 2 examples, some of the ranks have none.
@pytest.mark.parametrize(
    ("num_ranks", "num_examples", "views", "num_networks"),
    [(2, 11, "ten_crops", 1), (3, 11, "center", 2), (3, 2, "center", 1)],
)
def test_the_ranks_together_count_each_example_once(
    model, evaluator, records, jpegs, num_ranks, num_examples, views, num_networks
):
    images = crops_of(jpegs[:num_examples], views)
    total, all_counted = counted(0), counted(num_examples)
    for rank in range(num_ranks):
        communicator = OneOfRanks(rank, num_ranks, all_counted)
        own = first_of(records, num_examples)
        ours = evaluator(communicator, own, eval_views=views, eval_batch_size=20)
        if num_networks == 1:
            ours.evaluate()
            of_networks = [probabilities(model, images)]
        else:
            ensemble, of_networks = ours.new_ensemble(), []
            for seed in (1, 2):
                set_weights(model, seed)
                ours.add_to(ensemble)
                of_networks.append(probabilities(model, images))
            ours.evaluate_ensemble(ensemble)
        total += communicator.values
    expected = expected_of(np.mean(of_networks, axis=0))
    top1, top5, loss = expected.sums()
    by_class, total = np.split(total, [OF_CLASSES])
    assert total[[0, 1, 4, 5]].tolist() == [top1, top5, num_examples, 0]
    assert total[2] == pytest.approx(loss, rel=LOSS_TOLERANCE)
    np.testing.assert_array_equal(by_class, np.ravel(expected.by_class(slice(None))))


def test_examples_that_are_missing_in_the_sum_are_an_error(evaluator):
    class Loses(Communicator):
        def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
            return values - counted(1)

    ours = evaluator(Loses(ProcessInfo()))
    with pytest.raises(RuntimeError, match="it counted 10 and skipped 0"):
        ours.evaluate()


@pytest.fixture
def two_damaged(records, put_record) -> RecordFiles:
    for number in (5, 10):
        records = put_record(records, number, b"no record")
    return records


KEPT = [number for number in range(NUM_EXAMPLES) if number not in (5, 10)]


def test_damaged_examples_do_not_count_where_they_are_skipped(
    model, evaluator, two_damaged, jpegs
):
    ours = evaluator(own=two_damaged, on_bad_record="skip", eval_batch_size=4)
    expected = expected_of(probabilities(model, crops_of(jpegs)))
    for _ in range(2):
        check(ours.evaluate(), expected, KEPT)
    ensemble = ours.new_ensemble()
    for _ in range(2):
        ours.add_to(ensemble)
    check(ours.evaluate_ensemble(ensemble), expected, KEPT)


def test_damaged_examples_of_all_ranks_are_left_out_once(
    model, evaluator, two_damaged, jpegs
):
    total = counted(0)
    for rank in range(2):
        communicator = OneOfRanks(rank, 2, counted(NUM_EXAMPLES))
        evaluator(communicator, two_damaged, on_bad_record="skip").evaluate()
        total += communicator.values
    expected = expected_of(probabilities(model, crops_of(jpegs)))
    top1, top5, _ = expected.sums(KEPT)
    by_class, total = np.split(total, [OF_CLASSES])
    assert total[[0, 1, 4, 5]].tolist() == [top1, top5, 9, 2]
    np.testing.assert_array_equal(by_class, np.ravel(expected.by_class(KEPT)))


def test_a_damaged_example_ends_evaluation_where_none_is_skipped(
    evaluator, two_damaged
):
    with pytest.raises(UserError, match=f"byte 5 of {two_damaged.paths[2]} is corrupt"):
        evaluator(own=two_damaged).evaluate()


def test_a_preempted_evaluation_ends_between_two_batches(evaluator):
    """After the last one of six it has a result."""
    signals = SimpleNamespace(seen="")
    done: list[int] = []

    def stop_after(last: int) -> Callable[[int], None]:
        def report(number: int) -> None:
            done.append(number)
            signals.seen = "SIGTERM" if number == last else ""

        return report

    ours = evaluator(signals=signals, eval_batch_size=2)
    with pytest.raises(Preempted, match="stopped during an evaluation"):
        ours.evaluate(report=stop_after(2))
    assert done == [1, 2]
    signals.seen = ""
    assert ours.evaluate(report=stop_after(6)).count == NUM_EXAMPLES


@pytest.mark.parametrize(
    ("views", "batch_size"), [("center", 1000), ("five_crops", 10)]
)
def test_an_ensemble_is_the_mean_of_its_networks(
    model, evaluator, jpegs, views, batch_size
):
    ours = evaluator(eval_views=views, eval_batch_size=batch_size)
    ensemble = ours.new_ensemble()
    images = crops_of(jpegs, views)
    of_networks = []
    for seed, penalty in ((1, 2.0), (2, 4.0), (3, 9.0)):
        set_weights(model, seed)
        ours.add_to(ensemble, penalty)
        of_networks.append(probabilities(model, images))
    expected = expected_of(np.mean(of_networks, axis=0))
    assert expected.sums()[1] != expected_of(of_networks[-1]).sums()[1]
    result = ours.evaluate_ensemble(ensemble)
    check(result, expected)
    assert result.loss - result.cross_entropy == pytest.approx(5.0, rel=1e-6)


def test_what_one_network_of_an_ensemble_did_not_see_or_finds_nan_does_not_spread():
    ensemble, labels = Ensemble(3, 2), np.zeros(3, np.int32)
    usual = np.float32([[-1, -0.5]] * 3)
    with_nan = usual.copy()
    with_nan[0] = np.nan
    for found, mask in ((usual, [True] * 3), (with_nan, [True, False, True])):
        ensemble.add(0, found, labels, np.array(mask))
        ensemble.penalties.append(0.0)
    ((logits, _, mask),) = ensemble.batches(5)
    assert mask.tolist() == [True, False, True]
    assert np.isnan(logits[0]).all()
    np.testing.assert_allclose(logits[1:], usual[1:], rtol=1e-6)
    assert list(Ensemble(0, 2).batches(4)) == []  # A rank without examples.


def test_outputs_that_are_not_finite_are_counted_and_refused(model, evaluator, jpegs):
    kernel = model.variables[0].numpy()
    kernel[0, 0] = 3e38  # Times a value above 1.13 of the first pixel, it overflows.
    model.variables[0].assign(kernel)
    count = (np.abs(crops_of(jpegs)[:, 0, 0, 0, 0]) > 3.4028e38 / 3e38).sum()
    assert 0 < count < NUM_EXAMPLES
    ours = evaluator(eval_batch_size=4)
    words = f"be finite; they are not for {count} of {NUM_EXAMPLES} images"
    ensemble = ours.new_ensemble()
    ours.add_to(ensemble)
    for evaluate in (ours.evaluate, lambda: ours.evaluate_ensemble(ensemble)):
        with pytest.raises(AgreedFailure, match=words):
            evaluate()


def test_the_predictions_are_those_that_were_counted(model, evaluator, jpegs):
    ours, top = evaluator(eval_batch_size=4), TopClasses()
    assert ours.evaluate(top=top) == ours.evaluate()
    block = top.of_all(ALONE)
    assert block.examples.tolist() == list(range(NUM_EXAMPLES))
    assert block.labels.tolist() == LABELS.tolist()
    expected = expected_of(probabilities(model, crops_of(jpegs)))
    is_right = block.classes[:, 0] == block.labels
    assert is_right.tolist() == expected.top1.tolist()
    in_five = (block.classes == block.labels[:, np.newaxis]).any(axis=1)
    assert in_five.tolist() == expected.top5.tolist()
    ensemble, of_ensemble = ours.new_ensemble(), TopClasses()
    ours.add_to(ensemble)
    ours.evaluate_ensemble(ensemble, of_ensemble)
    again = of_ensemble.of_all(ALONE)
    assert again.classes.tolist() == block.classes.tolist()
    np.testing.assert_allclose(again.probabilities, block.probabilities, rtol=1e-5)


def test_images_of_wrong_predictions_are_kept_the_most_certain_first(
    evaluator, records, monkeypatch
):
    class Rank(OneOfRanks):
        def gather_objects(self, value):
            sent.append(value)
            return [value]

    monkeypatch.setattr(top_classes, "NUM_IMAGES", 3)
    top, sent = TopClasses(), []
    evaluator().evaluate(top=top)
    block = top.of_all(ALONE)
    images = top_classes.wrong_images(block, block, records, ALONE)
    wrong = block.rows(block.classes[:, 0] != block.labels)
    order = np.argsort(-wrong.probabilities[:, 0])
    assert 3 < len(order) < NUM_EXAMPLES
    assert [image.example for image in images] == wrong.examples[order][:3].tolist()
    assert Image.open(io.BytesIO(images[0].jpeg)).size == (52, 40)
    transparent = encode(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), "PNG")
    shown = Image.open(io.BytesIO(top_classes._small_jpeg(transparent)))
    assert shown.getpixel((4, 4)) == (255, 255, 255)  # As the network sees it.
    # Ranks send only those of their own examples.
    for rows in (np.arange(2), np.arange(2, NUM_EXAMPLES)):
        top_classes.wrong_images(block.rows(rows), block, records, Rank(0, 2))
    assert {**sent[0], **sent[1]} == {image.example: image for image in images}
    assert sum(map(len, sent)) == 3


def test_a_result_reads_as_percents():
    result = Result(0.75232, 0.9241, 1.9024274, cross_entropy=1.25, count=50_000)
    assert str(result) == (
        "top-1 75.23 % (95 % interval: 74.9 to 75.6 %), top-5 92.41 %,"
        " cross-entropy 1.2500 on 50,000 images"
    )
    result = Result(0.5, 1.0, 2.0, 1.25, 8, skipped_records=1, views="flip")
    assert str(result).endswith("on 8 images, views flip, 1 skipped")
    # They are settings of the run.
    assert {"views", "num_classes", "by_class"}.isdisjoint(result.as_dict())
    for actual, is_told in (([3, 2, 0], False), ([5, 3, 0], True)):
        counts = ByClass(*np.array([[3, 1, 0], actual, [4, 1, 1]]))
        unequal = dataclasses.replace(result, by_class=counts)
        told = "balanced accuracy 46.67 %, macro F1 58.33 %"
        assert (told in str(unequal)) == is_told
        assert unequal.as_dict()["balanced_accuracy"] == counts.balanced_accuracy
        assert unequal.as_dict()["macro_f1"] == counts.macro_f1
    for num_classes in (5, 6):
        few = dataclasses.replace(result, num_classes=num_classes)
        assert ("top-5" in str(few)) == (num_classes == 6)
        assert few.as_dict() == result.as_dict()


@settings(max_examples=25)
@given(data=st.data(), batch=st.integers(1, 5), num_classes=st.integers(1, 9))
def test_classes_and_probabilities_are_those_of_numpy(data, batch, num_classes):
    values = st.sampled_from([-1.5, 0.0, 0.25, 3.0])  # Few, so that many are equal.
    logits = np.array(
        [[data.draw(values) for _ in range(num_classes)] for _ in range(batch)],
        np.float32,
    )
    classes, probabilities = top_classes.of_logits(tf.constant(logits))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    assert classes.numpy().tolist() == order.tolist()
    exponents = np.exp(logits.astype(np.float64))
    softmax = exponents / exponents.sum(axis=1, keepdims=True)
    expected = np.take_along_axis(softmax, order, axis=1)
    np.testing.assert_allclose(probabilities.numpy(), expected, rtol=1e-6)
    labels = [data.draw(st.integers(0, num_classes - 1)) for _ in range(batch)]
    for k in (1, 2, 5):
        ours = in_top(tf.constant(logits), tf.constant(labels, tf.int32), k)
        expected = (order[:, :k] == np.array(labels)[:, np.newaxis]).any(axis=1)
        assert ours.numpy().tolist() == expected.tolist()


def test_all_ranks_are_sorted_by_example_without_those_that_do_not_count():
    top, classes = TopClasses(), np.arange(8, dtype=np.int32).reshape(4, 2)
    counts = np.array([True, True, False, True])
    top.add(np.array([9, 4, 5, 6]), np.arange(4), counts, classes, classes / 10)
    block = top.of_all(OneOfRanks(0, 1))
    assert block.examples.tolist() == [4, 6, 9]
    assert block.labels.tolist() == [1, 3, 0]
    assert block.classes.tolist() == [[2, 3], [6, 7], [0, 1]]
