"""randomk: the same random coordinates on all ranks, which are never sent.

Of n values the ceil(n ratio) whose coordinates come first in a random order are kept,
without scaling, as in the source. The order is a function of seed, vector and step.

Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py, Randomk.
"""

import tensorflow as tf

from resnet.exchange.codecs.sparse import randomk_count


def draw(
    num_values: int, ratio: float, seed: int, vector: int, step: tf.Tensor
) -> tf.Tensor:
    """Returns the coordinates that are kept, `[count]` int64, all different.

    Args:
        num_values: Length n of the vector, at least 1.
        ratio: Fraction of the values to keep, above 0 and at most 1.
        seed: Seed of the run.
        vector: Number of the vector among those of a step.
        step: Number of the step, an int64 scalar below 2**32.
    """
    # index_shuffle needs mixed keys: with the numbers of successive steps it would keep
    # some coordinates a fifth more often than others.
    keys = tf.random.stateless_uniform(
        [2],
        tf.stack(
            [tf.constant(seed, tf.int64), tf.constant(vector << 32, tf.int64) + step]
        ),
        minval=None,
        maxval=None,
        dtype=tf.int64,
    )
    indices = tf.range(randomk_count(num_values, ratio), dtype=tf.int64)
    last = tf.constant(num_values - 1, tf.int64)
    return tf.random.experimental.index_shuffle(indices, keys, last)
