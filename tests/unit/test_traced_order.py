"""The order of the examples in graphs, against that of NumPy."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.data import example_order, input_pipeline


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
        lambda p: input_pipeline._shuffled(p % 1000, 2**62 + 3, p // 1000, 1000),
        autograph=False,
    )(tf.constant(positions))
    expected = example_order.shuffled(
        positions % 1000, 2**62 + 3, positions // 1000, 1000
    )
    np.testing.assert_array_equal(ours, expected)
