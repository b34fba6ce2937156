"""powersgd: matrices of low rank instead of gradients, averaged by an all-reduce.

The gradient M `[n, m]` of a variable, whose last axis has m outputs, becomes

    P = orthonormal columns of mean(M Q),    Q' = mean(M^T P),    mean gradient = P Q'^T

where Q `[m, r]` is the Q' of the step before, at first normally distributed, and the
means are over ranks. That is one iteration of the power method for the mean of M. What
a rank sends, r (n + m) values, is linear in its gradient: any all-reduce sums it.
Vectors, and so all parameters of batch normalization, are averaged as they are.

Source: Vogels et al. 2019, arXiv:1905.13727 (PowerSGD), algorithm 1.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from resnet.distributed.communicator import AgreedError
from resnet.exchange.account import Traffic
from resnet.exchange.codecs import message_sizes
from resnet.exchange.vector_exchange import Means, VectorExchange


class LowRankMatrices(VectorExchange):
    """Averages the gradients of matrices by approximations of a low rank.

    Attributes:
        rank_variables: The Q of each matrix by its stored name, `[m, r]` float32; they
            are the same on all ranks.
    """

    def _prepare(self) -> None:
        """Draws the first Q of each matrix, normally distributed.

        Raises:
            AgreedError: On all ranks, if a matrix has a side of fewer than r values.
        """
        rank = self._compression.powersgd_rank
        self._num_values = message_sizes.of_powersgd(self._shapes.values(), rank) // 4
        self._matrices = {
            name: message_sizes.matrix_shape(shape)
            for name, shape in self._shapes.items()
        }
        for number, (name, shape) in enumerate(self._matrices.items()):
            if not shape:
                continue
            if min(shape) < rank:
                raise AgreedError(
                    f"--powersgd_rank={rank} must be at most {min(shape)}, the smaller"
                    f" side of the gradient of {name}, a matrix of {shape[0]} x"
                    f" {shape[1]}. Give a lower rank, or another --method."
                )
            first = tf.random.stateless_normal([shape[1], rank], [self._seed, number])
            self.rank_variables[_stored_name(name)] = tf.Variable(first)

    def __call__(self, flat: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any) -> Means:
        """Returns the means over ranks, as `VectorExchange` says."""
        del step, ratio
        pairs = [
            self._exchange_vector(name, vector)
            if not shape
            else self._exchange_matrix(name, tf.reshape(vector, shape))
            for vector, (name, shape) in zip(flat, self._matrices.items(), strict=True)
        ]
        means, left = zip(*pairs, strict=True)
        traffic = Traffic.of_allreduce(self._num_values, self._num_ranks)
        return Means(list(means), list(left), traffic)

    def _exchange_vector(
        self, name: str, vector: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return self._mean(vector, name), tf.zeros_like(vector)

    def _exchange_matrix(
        self, name: str, matrix: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the mean of a matrix of low rank, and what this rank's part lacks."""
        right = self.rank_variables[_stored_name(name)]
        left = self._mean(tf.matmul(matrix, right), f"{name}/p")
        left, _ = tf.linalg.qr(left)
        own = tf.matmul(matrix, left, transpose_a=True)
        mean = self._mean(own, f"{name}/q")
        right.assign(mean)
        rest = matrix - tf.matmul(left, own, transpose_b=True)
        approximation = tf.matmul(left, mean, transpose_b=True)
        return tf.reshape(approximation, [-1]), tf.reshape(rest, [-1])


def _stored_name(name: str) -> str:
    return f"power_sgd/{name}"
