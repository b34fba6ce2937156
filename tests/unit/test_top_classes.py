import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.evaluation import top_classes
from resnet.evaluation.evaluator import in_top
from resnet.evaluation.top_classes import TopClasses
from tests.unit.one_of_ranks import OneOfRanks


@settings(deadline=None, max_examples=40)
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
    first = tf.constant(order[:, 0], tf.int32)
    assert in_top(tf.constant(logits), first, 1).numpy().all()


def added(examples, mask) -> TopClasses:
    """Of a batch of three whose last ones may be padding."""
    top = TopClasses()
    classes = np.arange(6, dtype=np.int32).reshape(3, 2)
    top.add(np.array(examples), np.arange(3), np.array(mask), classes, classes / 10)
    return top


def test_padding_and_examples_that_do_not_count_are_left_out():
    block = added([7, 5], [True, False, True]).of_rank()
    assert block.examples.tolist() == [7]
    assert block.labels.tolist() == [0]
    assert block.classes.tolist() == [[0, 1]]


def test_all_ranks_are_sorted_by_example():
    top = added([9, 4, 6], [True] * 3)
    block = top.of_all(OneOfRanks(0, 1))
    assert block.examples.tolist() == [4, 6, 9]
    assert block.labels.tolist() == [1, 2, 0]
    assert block.classes[:, 0].tolist() == [2, 4, 0]


def test_a_rank_without_examples_has_nothing():
    assert TopClasses().of_rank() is None
