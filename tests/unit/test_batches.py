import itertools
import pathlib
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from data_prep.records import tf_example, tfrecord
from resnet import native
from resnet.base.errors import UserError
from resnet.config.config import Config
from resnet.data import example_order
from resnet.data.batches import Batches
from resnet.data.corrupt_records import CorruptRecords, Replacements
from resnet.data.example_order import ClassOrder
from resnet.data.input_pipeline import Batch
from resnet.data.record_files import RecordFiles
from tests.unit.read_batches import assert_equal, evaluate, join, open_train, train
from tests.unit.seen_images import jpeg, noise

NUM_EXAMPLES = 13
NUM_CLASSES = 4
NUM_STEPS = 5  # 30 examples: more than two epochs.


@pytest.fixture(scope="module")
def records(numbered_set) -> RecordFiles:
    return open_train(numbered_set)


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(
        NUM_EXAMPLES,
        "abcd",
        seed=11,
        augmentation="none",
        global_batch_size=6,
        train_steps=NUM_STEPS,
        on_bad_record="skip",
    )


JPEG = bytes(jpeg(noise(32, 32)).numpy())


def record(image: bytes, labels: Sequence[int] = (1,)) -> bytes:
    features = {tf_example.ENCODED: image, tf_example.LABEL: labels}
    return tfrecord.frame_record(tf_example.encode_example(features))


WHOLE = record(JPEG)
FLIPPED = WHOLE[:100] + bytes([WHOLE[100] ^ 1]) + WHOLE[101:]
DAMAGES = {
    "flipped bit": FLIPPED,
    "cut record": WHOLE[:-5],
    "no example": tfrecord.frame_record(b"\xff" * 20),
    "no label": record(JPEG, labels=()),
    "two labels": record(JPEG, labels=(1, 2)),
    "no JPEG": record(b"nothing"),
    "cut JPEG": record(JPEG[:-400]),
}


def test_a_corrupt_record_ends_a_run_with_a_sentence(records, config, put_record):
    corrupt = put_record(records, 7, DAMAGES["no label"])
    with pytest.raises(UserError, match=f"byte 5 of {corrupt.paths[-1]} is corrupt: "):
        train(corrupt, config, on_bad_record="fail")


def wanted_examples(config: Config, sampling: str = "natural") -> list[list[int]]:
    """The examples of each step, by the arithmetic of the order."""
    labels, classes = np.arange(NUM_EXAMPLES) % NUM_CLASSES, None
    if sampling != "natural":
        classes = ClassOrder.of(labels, sampling)
    position = np.arange(6 * NUM_STEPS)
    order, _ = example_order.examples_at(position, config.seed, NUM_EXAMPLES, classes)
    return order.reshape(NUM_STEPS, 6).tolist()


def assert_replaced(
    read: list[Batch],
    wanted: list[list[int]],
    replacements: dict[int, int],
    numbers_in: Callable[[np.ndarray], list[int]],
) -> None:
    assert len(read) == len(wanted)
    for batch, examples in zip(read, wanted, strict=True):
        expected = [replacements.get(example, example) for example in examples]
        assert batch.examples.tolist() == expected
        assert numbers_in(batch.images) == expected
        assert batch.labels.tolist() == [example % NUM_CLASSES for example in expected]
        assert batch.mask.tolist() == [
            example not in replacements for example in examples
        ]


def test_the_next_record_stands_in_whatever_the_corruption(
    records, config, put_record, numbers_in
):
    replacements = {1: 2, 3: 4, 5: 6, 7: 8, 9: 10, 11: 0, 12: 0}
    for number, content in zip(replacements, DAMAGES.values(), strict=True):
        records = put_record(records, number, content)
    read = train(records, config, sampling="balanced")
    wanted = wanted_examples(config, "balanced")
    assert_replaced(read, wanted, replacements, numbers_in)


def test_runs_of_corrupt_records_are_skipped_in_training_and_in_evaluation(
    records, config, put_record, numbers_in
):
    # Over the end of a file, and over the end of the set.
    replacements = {3: 6, 4: 6, 5: 6, 11: 1, 12: 1, 0: 1}
    corrupt = records
    for number in replacements:
        corrupt = put_record(corrupt, number, FLIPPED)
    read = train(corrupt, config)
    assert_replaced(read, wanted_examples(config), replacements, numbers_in)

    evaluated = evaluate(corrupt, config)
    wanted = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert_replaced(evaluated[:3], wanted, replacements, numbers_in)
    assert not evaluated[3].mask.any()


@pytest.fixture(scope="module")
def two_corrupt(records, put_record_in, tmp_path_factory) -> RecordFiles:
    folder = tmp_path_factory.mktemp("corrupt")
    for number in (3, 4):
        records = put_record_in(folder, records, number, FLIPPED)
    return records


@pytest.fixture(scope="module")
def skipping(two_corrupt, config) -> list[Batch]:
    """The run of one rank that skips the two, not to be changed."""
    return train(two_corrupt, config)


def test_what_is_skipped_does_not_depend_on_the_number_of_ranks(
    two_corrupt, config, skipping
):
    assert any(not batch.mask.all() for batch in skipping)
    ranks = [train(two_corrupt, config, rank, 2) for rank in range(2)]
    assert_equal([join(parts) for parts in zip(*ranks, strict=True)], skipping)


def test_what_is_skipped_is_the_same_with_a_cache_and_with_stock_ops(
    two_corrupt, config, skipping, monkeypatch
):
    ours = train(two_corrupt, config, decoded_cache_mb=1)
    assert_equal(ours, skipping)
    monkeypatch.setattr(native, "ops", lambda: None)
    for batch, other in zip(train(two_corrupt, config), skipping, strict=True):
        np.testing.assert_allclose(batch.images, other.images, rtol=0, atol=2e-5)
        assert_equal([batch._replace(images=0)], [other._replace(images=0)])


def test_stock_ops_skip_data_that_is_no_text_either(
    records, config, put_record, numbers_in, monkeypatch
):
    # Their error quotes the record, and TensorFlow can't decode its own message.
    monkeypatch.setattr(native, "ops", lambda: None)
    corrupt = put_record(records, 7, DAMAGES["no example"])
    read = train(corrupt, config)
    assert_replaced(read, wanted_examples(config), {7: 8}, numbers_in)


def test_a_missing_file_ends_a_run_with_a_sentence(records, config, put_record):
    corrupt = put_record(records, 7, WHOLE)
    pathlib.Path(corrupt.paths[-1]).unlink()
    for read_all, policy in ((train, "skip"), (evaluate, "fail")):
        with pytest.raises(UserError, match=r"can't be read \(No such file"):
            read_all(corrupt, config, on_bad_record=policy)


def test_what_may_be_corrupt_depends_on_what_a_rank_reads(two_corrupt, config):
    steps = enumerate(wanted_examples(config))
    first = next(step for step, examples in steps if step and {3, 4} & set(examples))
    with mock.patch.object(
        CorruptRecords, "detect", autospec=True, side_effect=CorruptRecords.detect
    ) as detect:
        train(two_corrupt, config, start_step=1)
        assert detect.call_args_list[0].args[2] == 6 * first
        detect.reset_mock()
        evaluate(two_corrupt, config)
        assert {call.args[2] for call in detect.call_args_list} == {NUM_EXAMPLES}


def failing_batches(records: RecordFiles, fails: Callable[[int, int], bool]) -> Batches:
    """Batches of three steps; `fails` tells of which graph and step they fail."""
    graphs = itertools.count()

    def make_dataset(start: int, replacements: Replacements) -> tf.data.Dataset:
        graph = next(graphs)
        is_bad = tf.constant([fails(graph, step) for step in range(3)])

        def read(step: tf.Tensor) -> Batch:
            with tf.control_dependencies(
                [tf.debugging.assert_equal(is_bad[step], False)]
            ):
                return Batch(tf.zeros([1]), tf.zeros([1], tf.int32), step, step, step)

        return tf.data.Dataset.range(start, 3).map(read)

    return Batches(
        make_dataset, lambda step: np.array([step]), CorruptRecords(records, "skip"), 0
    )


def test_a_batch_that_fails_once_is_read_again_and_twice_is_an_error(records):
    failing = failing_batches(records, lambda graph, step: step == 1)
    next(failing)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(failing)
    failing = failing_batches(records, lambda graph, step: graph == step)
    assert [int(batch.examples) for batch in failing] == [0, 1, 2]
