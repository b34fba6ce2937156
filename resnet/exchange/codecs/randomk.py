"""randomk: random coordinates, the same on all ranks, which are never sent.

Of n values the ceil(n ratio) whose coordinates come first in a random order are kept,
without scaling, as in the source. The order is a function of seed, vector and step, the
same on all ranks, so an all-reduce sums what they send.

Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py, Randomk.
"""

import tensorflow as tf

from resnet.config.compression import randomk_count
from resnet.exchange.codecs.codec import Context


def average(values: tf.Tensor, context: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean over ranks of the values that are kept, and what isn't sent."""
    (size,) = values.shape
    indices = draw(size, randomk_count(size, context.ratio), context.stream)
    mean = context.mean(tf.gather(values, indices), "")
    places = indices[:, tf.newaxis]
    left = tf.tensor_scatter_nd_update(values, places, tf.zeros_like(mean))
    return tf.scatter_nd(places, mean, [size]), left


def draw(num_values: int, count: int, stream: tf.Tensor) -> tf.Tensor:
    """Returns the coordinates that are kept, `[count]` int64, all different.

    Of `Context.stream`, the rank doesn't count.
    """
    # index_shuffle needs mixed keys: with the numbers of successive steps it would keep
    # some coordinates a fifth more often than others.
    seed, vector, step, _ = tf.unstack(stream)
    keys = tf.random.stateless_uniform(
        [2],
        tf.stack([seed, vector * 2**32 + step]),
        minval=None,
        maxval=None,
        dtype=tf.int64,
    )
    indices = tf.range(count, dtype=tf.int64)
    last = tf.constant(num_values - 1, tf.int64)
    return tf.random.experimental.index_shuffle(indices, keys, last)
