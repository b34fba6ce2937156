"""randomk and powersgd: what the ranks send is summed on its way, by an all-reduce."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.compression import CompressionSettings, matrix_shape, randomk_count
from resnet.distributed.communicator import AgreedError
from resnet.exchange.codecs.codec import Context


def average_coordinates(
    values: tf.Tensor, context: Context
) -> tuple[tf.Tensor, tf.Tensor]:
    """randomk: random coordinates, the same on all ranks, which are never sent.

    Of n values the ceil(n ratio) whose coordinates come first in a random order are
    kept, without scaling, as in the source. The order is a function of seed, vector and
    step, the same on all ranks.

    Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py, Randomk.
    """
    (size,) = values.shape
    indices = draw_coordinates(size, randomk_count(size, context.ratio), context.stream)
    mean = context.mean(tf.gather(values, indices), "")
    places = indices[:, tf.newaxis]
    left = tf.tensor_scatter_nd_update(values, places, tf.zeros_like(mean))
    return tf.scatter_nd(places, mean, [size]), left


def draw_coordinates(num_values: int, count: int, stream: tf.Tensor) -> tf.Tensor:
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


def average_matrices(
    values: tf.Tensor, context: Context
) -> tuple[tf.Tensor, tf.Tensor]:
    """powersgd: matrices of low rank instead of gradients.

    The gradient M `[n, m]` of a variable, whose last axis has m outputs, becomes

        P = orthonormal columns of mean(M Q), Q' = mean(M^T P), mean gradient = P Q'^T

    where Q `[m, r]` is the Q' of the step before, at first normally distributed, and
    the means are over ranks. That is one iteration of the power method for the mean of
    M. What a rank sends, r (n + m) values, is linear in its gradient: any all-reduce
    sums it. Vectors, and so all parameters of batch normalization, are averaged as they
    are.

    Source: Vogels et al. 2019, arXiv:1905.13727 (PowerSGD), algorithm 1.
    """
    if context.state is None:
        return context.mean(values, ""), tf.zeros_like(values)
    matrix = tf.reshape(values, matrix_shape(context.shape))
    left = context.mean(tf.matmul(matrix, context.state), "/p")
    left, _ = tf.linalg.qr(left)
    own = tf.matmul(matrix, left, transpose_a=True)
    mean = context.mean(own, "/q")
    context.state.assign(mean)
    rest = matrix - tf.matmul(left, own, transpose_b=True)
    approximation = tf.matmul(left, mean, transpose_b=True)
    return tf.reshape(approximation, [-1]), tf.reshape(rest, [-1])


def first_matrix(
    settings: CompressionSettings, name: str, shape: Sequence[int], seed: Sequence[int]
) -> tf.Variable | None:
    """Returns the first Q, `[m, r]` float32; None for a vector.

    Raises:
        AgreedError: On all ranks, if the matrix has a side of fewer than r values.
    """
    rank, matrix = settings.powersgd_rank, matrix_shape(shape)
    if not matrix:
        return None
    if min(matrix) < rank:
        raise AgreedError(
            f"--powersgd_rank={rank} must be at most {min(matrix)}, the smaller side of"
            f" the gradient of {name}, a matrix of {matrix[0]} x {matrix[1]}. Give a"
            " lower rank, or another --method."
        )
    return tf.Variable(tf.random.stateless_normal([matrix[1], rank], seed))
