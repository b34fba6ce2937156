import dataclasses
import io
from collections.abc import Callable
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
from resnet.data.example_shard import ExampleShard, shard_of_rank
from resnet.data.record_files import RecordFiles
from resnet.distributed.communicator import Communicator
from resnet.evaluation import top_classes
from resnet.evaluation.evaluator import Evaluator, Result, in_top
from resnet.evaluation.top_classes import TopClasses
from resnet.hardware.placement import ProcessInfo
from tests.unit.jobs import job
from tests.unit.one_of_ranks import OneOfRanks

ALONE = Communicator(ProcessInfo())
NUM_EXAMPLES = 11
ALL_COUNTED = np.array([0, 0, 0, NUM_EXAMPLES, 0])  # As all ranks' sums.
NUM_CLASSES = 8
LABEL_SMOOTHING = 0.25
MEAN = np.array([0.485, 0.456, 0.406])
STDDEV = np.array([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(
        class_names="abcdefgh",
        eval_batch_size=3,
        label_smoothing=LABEL_SMOOTHING,
        weight_decay=0.5,
    )


def ranking(logits: np.ndarray) -> list[list[int]]:
    """The classes of each example, the highest first; of equal ones the earlier."""
    return [
        sorted(range(len(row)), key=lambda index: (-row[index], index))
        for row in logits.tolist()
    ]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), batch=st.integers(1, 5), num_classes=st.integers(1, 9))
def test_the_label_is_looked_for_in_the_ranking_of_the_classes(
    data, batch, num_classes
):
    # Few values, so that many are equal.
    values = st.sampled_from([-1.5, 0.0, 0.25, 3.0])
    logits = np.array(
        [[data.draw(values) for _ in range(num_classes)] for _ in range(batch)],
        np.float32,
    )
    labels = [data.draw(st.integers(0, num_classes - 1)) for _ in range(batch)]
    order = ranking(logits)
    for k in (1, 2, 5):
        ours = in_top(tf.constant(logits), tf.constant(labels, tf.int32), k)
        expected = [label in row[:k] for label, row in zip(labels, order, strict=True)]
        assert ours.numpy().tolist() == expected


@pytest.mark.parametrize("k", [1, 5])
def test_a_network_that_says_the_same_of_all_classes_is_right_about_the_first_k(k):
    logits = tf.zeros([NUM_CLASSES, NUM_CLASSES])
    ours = in_top(logits, tf.range(NUM_CLASSES), k).numpy()
    assert ours.tolist() == [label < k for label in range(NUM_CLASSES)]


@pytest.mark.parametrize("own", [np.nan, np.inf, -np.inf])
def test_a_label_without_a_finite_logit_is_never_in(own):
    logits = tf.constant([[own, 1.0, 2.0], [1.0, 3.0, 2.0]], tf.float32)
    assert in_top(logits, tf.constant([0, 1]), 3).numpy().tolist() == [False, True]


def test_logits_that_are_all_no_numbers_are_all_wrong():
    logits = tf.fill([4, 6], np.float32(np.nan))
    assert not in_top(logits, tf.constant([0, 1, 2, 5]), 5).numpy().any()


@pytest.fixture(scope="module")
def jpegs() -> list[bytes]:
    """Images of 32 x 32, example i of class 3 * i % 8."""
    generator = np.random.default_rng(0)
    encoded = []
    for _ in range(NUM_EXAMPLES):
        file = io.BytesIO()
        colour = generator.integers(0, 256, 3).astype(np.uint8)
        Image.fromarray(np.broadcast_to(colour, (32, 32, 3))).save(file, "JPEG")
        encoded.append(file.getvalue())
    return encoded


LABELS = np.array([3 * i % NUM_CLASSES for i in range(NUM_EXAMPLES)])


@pytest.fixture(scope="module")
def records(tmp_path_factory, jpegs, config, write_tiny_set) -> RecordFiles:
    folder = tmp_path_factory.mktemp("records")
    names = config.class_names
    write_tiny_set(folder, jpegs, LABELS.tolist(), names, [6, 5], split="validation")
    record_set = manifest.load(str(folder), "validation")
    return record_files.open_split(record_set, "validation")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """The mean colour times a fixed matrix."""
    inputs = keras.Input((32, 32, 3))
    x = keras.layers.GlobalAveragePooling2D()(inputs)
    made = keras.Model(inputs, keras.layers.Dense(NUM_CLASSES, name="dense")(x))
    generator = np.random.default_rng(3)
    for variable in made.variables:
        variable.assign(generator.normal(size=variable.shape))
    return made


class Rights(NamedTuple):
    """What NumPy finds of each example, `[num_examples]`."""

    top1: np.ndarray
    top5: np.ndarray
    loss: np.ndarray


@pytest.fixture(scope="module")
def rights(jpegs, model) -> Rights:
    kernel, bias = (one.numpy().astype(np.float64) for one in model.variables)
    images = np.array([tf.io.decode_jpeg(one).numpy() for one in jpegs]) / 255
    logits = ((images - MEAN) / STDDEV).mean((1, 2)) @ kernel + bias
    order = np.argsort(-logits, axis=1)
    log_softmax = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    own = log_softmax[np.arange(NUM_EXAMPLES), LABELS]
    smoothed = (1 - LABEL_SMOOTHING) * own + LABEL_SMOOTHING * log_softmax.mean(1)
    top5 = (order[:, :5] == LABELS[:, np.newaxis]).any(1)
    return Rights(order[:, 0] == LABELS, top5, -smoothed)


@pytest.fixture(scope="module")
def expected(rights) -> tuple[int, int, float]:
    """Those right, those right among five, and the summed loss."""
    return int(rights.top1.sum()), int(rights.top5.sum()), float(rights.loss.sum())


@pytest.fixture(scope="module")
def evaluator(model, records, config) -> Callable[..., Evaluator]:
    """A function that returns the evaluator of one of some ranks."""

    def evaluator(communicator: Communicator, own=records, **changes) -> Evaluator:
        share = ExampleShard(
            own, communicator.rank, communicator.num_ranks, own.num_examples
        )
        changed = dataclasses.replace(config, **changes)
        return Evaluator(model, share, changed, job(communicator))

    return evaluator


@pytest.mark.parametrize(
    ("batch_size", "num_batches"), [(1, 11), (3, 4), (7, 2), (11, 1), (1000, 1)]
)
def test_each_example_counts_once_for_any_batch_size(
    evaluator, expected, batch_size, num_batches
):
    top1, top5, loss = expected
    assert 0 < top1 < top5 < NUM_EXAMPLES  # Or the test could not tell much.
    ours = evaluator(ALONE, eval_batch_size=batch_size)
    assert ours.num_batches == num_batches
    reported: list[int] = []
    result = ours.evaluate(report=reported.append)
    assert reported == list(range(1, num_batches + 1))
    assert result.count == NUM_EXAMPLES
    assert result.top1 == top1 / NUM_EXAMPLES
    assert result.top5 == top5 / NUM_EXAMPLES
    # Logits are float32.
    assert result.loss == pytest.approx(loss / NUM_EXAMPLES, rel=1e-5)
    assert ours._count_batch.experimental_get_tracing_count() == 1


def test_evaluating_again_gives_the_same_and_sees_new_weights(model, evaluator):
    ours = evaluator(ALONE)
    first = ours.evaluate()
    assert ours.evaluate() == first
    before = [one.numpy() for one in model.variables]
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable.value))
    zero = ours.evaluate()
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)
    # All classes equal: those of the first class are right. Labels 0 are examples 0, 8.
    assert zero.top1 == 2 / NUM_EXAMPLES
    assert zero.loss == pytest.approx(np.log(NUM_CLASSES), rel=1e-6)
    assert ours.evaluate() == first


@pytest.mark.parametrize("batch_size", [4, 1000])
def test_the_predictions_are_those_that_were_counted(evaluator, rights, batch_size):
    ours, top = evaluator(ALONE, eval_batch_size=batch_size), TopClasses()
    assert ours.evaluate(top=top) == ours.evaluate()
    block = top.of_all(ALONE)
    assert block.examples.tolist() == list(range(NUM_EXAMPLES))
    assert block.labels.tolist() == LABELS.tolist()
    is_right = block.classes[:, 0] == block.labels
    assert is_right.tolist() == rights.top1.tolist()
    in_five = (block.classes == block.labels[:, np.newaxis]).any(axis=1)
    assert in_five.tolist() == rights.top5.tolist()
    ensemble, of_ensemble = ours.new_ensemble(), TopClasses()
    ours.add_to(ensemble)
    ours.evaluate_ensemble(ensemble, of_ensemble)
    again = of_ensemble.of_all(ALONE)
    assert again.classes.tolist() == block.classes.tolist()
    np.testing.assert_allclose(again.probabilities, block.probabilities, rtol=1e-5)


def test_the_images_of_wrong_predictions_are_kept_the_most_certain_first(
    evaluator, records
):
    top = TopClasses()
    evaluator(ALONE).evaluate(top=top)
    block = top.of_all(ALONE)
    found = top_classes.wrong_images(top.of_rank(), block, records, ALONE)
    certainty = {
        int(example): float(row[0])
        for example, row, is_wrong in zip(
            block.examples,
            block.probabilities,
            block.classes[:, 0] != block.labels,
            strict=True,
        )
        if is_wrong
    }
    assert 1 < len(certainty) < NUM_EXAMPLES
    expected = sorted(certainty, key=lambda example: -certainty[example])
    assert [one.example for one in found] == expected
    image = Image.open(io.BytesIO(found[0].jpeg))
    assert image.size == (32, 32)


def test_ranks_send_only_the_images_that_are_chosen_of_all(
    evaluator, records, monkeypatch
):
    class Rank(OneOfRanks):
        def gather_objects(self, value):
            sent.append(value)
            return [value]

    monkeypatch.setattr(top_classes, "NUM_IMAGES", 3)
    top, sent = TopClasses(), []
    evaluator(ALONE).evaluate(top=top)
    block = top.of_all(ALONE)
    expected = top_classes.wrong_images(block, block, records, ALONE)
    for rows in (slice(0, 2), slice(2, None)):
        own = block.rows(np.arange(len(block.labels))[rows])
        top_classes.wrong_images(own, block, records, Rank(0, 2))
    assert {**sent[0], **sent[1]} == {image.example: image for image in expected}
    assert sum(map(len, sent)) == len(expected) == 3


def test_the_weight_penalty_is_in_the_loss(evaluator):
    ours = evaluator(ALONE)
    plain = ours.evaluate()
    penalized = ours.evaluate(5.0)
    assert penalized.loss - plain.loss == pytest.approx(5.0, rel=1e-6)
    assert penalized.cross_entropy == plain.cross_entropy == plain.loss
    assert penalized.top1 == plain.top1


# With 2 examples, three of the ranks have none.
@pytest.mark.parametrize(("num_ranks", "num_examples"), [(2, 11), (3, 11), (5, 2)])
def test_the_ranks_together_count_each_example_once(
    evaluator, records, rights, num_ranks, num_examples
):
    own = dataclasses.replace(
        records,
        file_of_example=records.file_of_example[:num_examples],
        offset_of_example=records.offset_of_example[:num_examples],
        number_of_example=records.number_of_example[:num_examples],
    )
    total, all_counted = np.zeros(5), np.array([0, 0, 0, num_examples, 0])
    for rank in range(num_ranks):
        communicator = OneOfRanks(rank, num_ranks, all_counted)
        evaluator(communicator, own, eval_batch_size=4).evaluate()
        total += communicator.values
    assert total[0] == rights.top1[:num_examples].sum()
    assert total[1] == rights.top5[:num_examples].sum()
    assert total[2] == pytest.approx(rights.loss[:num_examples].sum(), rel=1e-5)
    assert total[3:].tolist() == [num_examples, 0]


def test_nodes_with_files_of_their_own_together_count_each_example_once(
    model, records, config, expected
):
    # Two ranks on the node with the first file, one with the second, one with none.
    shards_of_ranks = [(0,), (1,), (0,), ()]
    total = np.zeros(5)
    for rank in range(4):
        communicator = OneOfRanks(rank, 4, ALL_COUNTED)
        share = shard_of_rank(records, shards_of_ranks, rank)
        Evaluator(model, share, config, job(communicator)).evaluate()
        total += communicator.values
    assert total[:2].tolist() == list(expected[:2])
    assert total[2] == pytest.approx(expected[2], rel=1e-5)
    assert total[3:].tolist() == [NUM_EXAMPLES, 0]


def test_examples_that_are_missing_in_the_sum_are_an_error(evaluator):
    class Loses(Communicator):
        def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
            return values - [0, 0, 0, 1, 0]

    ours = evaluator(Loses(ProcessInfo()))
    with pytest.raises(
        RuntimeError, match="all 11 examples once; it counted 10 and skipped 0"
    ):
        ours.evaluate()


@pytest.fixture
def two_damaged(records, put_record) -> RecordFiles:
    for number in (5, 10):
        records = put_record(records, number, b"no record")
    return records


def test_damaged_examples_do_not_count_where_they_are_skipped(
    evaluator, two_damaged, rights
):
    ours = evaluator(ALONE, two_damaged, on_bad_record="skip")
    kept = [number for number in range(NUM_EXAMPLES) if number not in (5, 10)]
    for _ in range(2):
        result = ours.evaluate()
        assert result.count == 9
        assert result.top1 == rights.top1[kept].sum() / 9
        assert result.top5 == rights.top5[kept].sum() / 9
        assert result.loss == pytest.approx(rights.loss[kept].mean(), rel=1e-5)


def test_damaged_examples_of_all_ranks_are_left_out_once(
    evaluator, two_damaged, rights
):
    total = np.zeros(5)
    for rank in range(3):
        communicator = OneOfRanks(rank, 3, ALL_COUNTED)
        evaluator(communicator, two_damaged, on_bad_record="skip").evaluate()
        total += communicator.values
    kept = [number for number in range(NUM_EXAMPLES) if number not in (5, 10)]
    assert total[0] == rights.top1[kept].sum()
    assert total[3:].tolist() == [9, 2]


def test_a_damaged_example_ends_evaluation_where_none_is_skipped(
    evaluator, two_damaged
):
    with pytest.raises(UserError, match=f"byte 5 of {two_damaged.paths[2]} is corrupt"):
        evaluator(ALONE, two_damaged).evaluate()


def test_a_result_reads_as_percents_and_as_numbers():
    result = Result(0.75232, 0.9241, 1.9024274, cross_entropy=1.25, count=50_000)
    assert str(result) == ("top-1 75.23 %, top-5 92.41 %, loss 1.9024 on 50,000 images")
    assert result.as_dict() == {
        "top1": 0.75232,
        "top5": 0.9241,
        "loss": 1.9024274,
        "cross_entropy": 1.25,
        "count": 50_000,
    }


def test_a_result_of_several_views_says_so():
    result = Result(0.5, 1.0, 2.0, 1.25, 8, skipped_records=1, views="flip")
    assert str(result).endswith("on 8 images, views flip, 1 skipped")
    assert "views" not in result.as_dict()  # They are a setting of the run.
