"""Ops that do for many tensors at once what stock ops do one by one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet import native
from resnet.distributed import digests
from resnet.models.layers import normalization
from resnet.models.layers.normalization import Statistic
from resnet.training import train_step

REFUSED = (tf.errors.InvalidArgumentError, ValueError)


def statistics_of(sizes: list[int], steps: list[float], seed: int) -> list[Statistic]:
    random = np.random.default_rng(seed)
    return [
        Statistic(
            keras.Variable(random.normal(size=size).astype(np.float32)),
            tf.constant(random.normal(size=size), tf.float32),
            step,
        )
        for size, step in zip(sizes, steps, strict=True)
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0, 1, width=32)), min_size=1, max_size=5
    ),
    st.integers(0, 100),
)
def test_averages_move_to_the_same_bits_with_and_without_the_op(pairs, seed):
    sizes, steps = [size for size, _ in pairs], [step for _, step in pairs]
    ours, others = (statistics_of(sizes, steps, seed) for _ in range(2))
    before = [average.numpy() for average, _, _ in ours]
    normalization.move_averages(ours)
    with native.disabled():
        normalization.move_averages(others)
    for (average, value, step), (other, _, _), old in zip(
        ours, others, before, strict=True
    ):
        expected = old - (old - value.numpy()) * np.float32(step)
        np.testing.assert_array_equal(average.numpy(), expected)
        np.testing.assert_array_equal(other.numpy(), expected)


def test_averages_move_in_a_graph_after_what_reads_them():
    (statistic,) = statistics_of([3], [0.5], 0)
    old = statistic.average.numpy()

    @tf.function(autograph=False)
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        read = statistic.average.value + 0
        normalization.move_averages([statistic])
        return read, statistic.average.value + 0

    read, after = step()
    np.testing.assert_array_equal(read, old)
    np.testing.assert_array_equal(after, old - (old - statistic.value) * 0.5)
    normalization.move_averages([])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": [0.1]}, "steps must have one value for each of 2 averages; got 1"),
        ({"statistics": [tf.zeros([2]), tf.zeros([3])]}, "variable 1 has the shape"),
        ({"twice": True}, "must be distinct; got one twice"),
    ],
)
def test_what_does_not_fit_is_refused(changed, words):
    variables = [tf.Variable(tf.zeros([2])) for _ in range(2)]
    arguments = {
        "averages": [variable.handle for variable in variables],
        "statistics": [tf.zeros([2])] * 2,
        "steps": [0.1, 0.1],
    }
    if changed.pop("twice", False):
        changed = {"averages": [variables[0].handle] * 2}
    with pytest.raises(REFUSED, match=words):
        native.ops().resnet_move_averages(**{**arguments, **changed})


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_digests_in_a_graph_are_those_of_the_arrays(is_compiled, wanted):
    random = np.random.default_rng(0)
    shapes = ([], [0], [3], [2, 3, 5], [1_000, 70])
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]

    def compute(wanted: tf.Tensor) -> tf.Tensor:
        return train_step._digests([tf.constant(array) for array in arrays], wanted)

    if is_compiled:
        found = tf.function(compute, autograph=False)(tf.constant(wanted))
    else:
        with native.disabled():
            found = tf.function(compute, autograph=False)(tf.constant(wanted))
    expected = list(digests.digests_of(arrays)) if wanted else []
    assert found.numpy().tolist() == expected
    if wanted:
        assert digests.combined(expected) == digests.digest(arrays)
