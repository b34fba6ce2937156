"""Norms of gradients and weights that are the same bits for any number of threads.

Each rank computes them for itself, and ranks may have different numbers of threads.
TensorFlow's sum of a whole tensor is divided among the threads, so that its rounding
depends on their number, and the weights of such ranks would drift apart.
"""

from collections.abc import Sequence

import tensorflow as tf

# A sum of so few values isn't divided among threads.
_BLOCK = 1024


def square_sum(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the squares of a float32 tensor, a scalar.

    Values are summed in blocks of 1,024, then the sums of the blocks likewise. The sum
    of a block is computed by one thread.
    """
    values = tf.reshape(tf.square(tensor), [-1])
    while (size := values.shape.num_elements()) > _BLOCK:
        padded = tf.pad(values, [[0, -size % _BLOCK]]) if size % _BLOCK else values
        values = tf.reduce_sum(tf.reshape(padded, [-1, _BLOCK]), axis=1)
    return tf.reduce_sum(values)


def norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the 2-norm of a float32 tensor, a scalar."""
    return tf.sqrt(square_sum(tensor))


def clip_by_global_norm(
    tensors: Sequence[tf.Tensor], largest_norm: float
) -> list[tf.Tensor]:
    """Returns the tensors, scaled so that the norm of all of them is at most a limit.

    Their shapes are known, and they are float32.

    Source: Pascanu et al. 2012, arXiv:1211.5063, algorithm 1.
    """
    total = tf.reduce_sum(tf.stack([square_sum(tensor) for tensor in tensors]))
    clipped, _ = tf.clip_by_global_norm(tensors, largest_norm, use_norm=tf.sqrt(total))
    return list(clipped)
