"""randomk: the mean of the same random coordinates of all ranks, by an all-reduce."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from resnet.compression import random_coordinates, sparse
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import Traffic
from resnet.exchange.gathered import Means


class RandomCoordinates:
    """Averages random coordinates of each vector, without scaling the others' absence.

    All ranks draw the same coordinates, so what they send is summed on its way.

    Attributes:
        rank_variables: The state of this rank by its stored name: none.
    """

    def __init__(
        self,
        communicator: Communicator,
        vector_sizes: dict[str, int],
        seed: int,
    ) -> None:
        """Prepares the exchange.

        Args:
            communicator: The ranks.
            vector_sizes: Length of each vector by its name, the same on all ranks.
            seed: Seed of the coordinates.
        """
        self.rank_variables: dict[str, tf.Variable] = {}
        self._collectives = communicator.collectives
        self._num_ranks = communicator.num_ranks
        self._vector_sizes = vector_sizes
        self._seed = seed

    def __call__(self, flat: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any) -> Means:
        """Returns the means over ranks, as `GatheredMessages` does."""
        means, left, num_kept = [], [], 0
        for number, (name, size) in enumerate(self._vector_sizes.items()):
            vector = flat[number]
            indices = random_coordinates.draw(size, ratio, self._seed, number, step)
            (mean,) = self._collectives.allreduce_mean(
                [tf.gather(vector, indices)], [f"compressed/{name}"]
            )
            num_kept += sparse.randomk_count(size, ratio)
            places = indices[:, tf.newaxis]
            means.append(tf.scatter_nd(places, mean, [size]))
            zeros = tf.zeros_like(mean)
            left.append(tf.tensor_scatter_nd_update(vector, places, zeros))
        traffic = Traffic.of_allreduce(num_kept, self._num_ranks)
        return Means(means, left, traffic)
