"""randomk: the mean of the same random coordinates of all ranks, by an all-reduce."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from resnet.exchange.account import Traffic
from resnet.exchange.codecs import random_coordinates, sparse
from resnet.exchange.vector_exchange import Means, VectorExchange


class RandomCoordinates(VectorExchange):
    """Averages random coordinates of each vector, without scaling the others' absence.

    All ranks draw the same coordinates, so what they send is summed on its way.
    """

    def __call__(self, flat: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any) -> Means:
        """Returns the means over ranks, as `VectorExchange` says."""
        means, left, num_kept = [], [], 0
        for number, (name, size) in enumerate(
            zip(self._names, self._sizes, strict=True)
        ):
            vector = flat[number]
            indices = random_coordinates.draw(size, ratio, self._seed, number, step)
            mean = self._mean(tf.gather(vector, indices), name)
            num_kept += sparse.randomk_count(size, ratio)
            places = indices[:, tf.newaxis]
            means.append(tf.scatter_nd(places, mean, [size]))
            zeros = tf.zeros_like(mean)
            left.append(tf.tensor_scatter_nd_update(vector, places, zeros))
        return Means(means, left, Traffic.of_allreduce(num_kept, self._num_ranks))
