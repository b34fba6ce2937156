"""Work that the ranks divide among themselves, and whose results all of them need."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from resnet.distributed.collectives import Collectives
from resnet.exchange.codecs import message_sizes


class DividedWork:
    """Computes tensors each on one rank, and gives them to all ranks.

    Attributes:
        bytes_sent: The bytes that this rank sends for the tensors of the last call.
    """

    def __init__(self, collectives: Collectives, name: str) -> None:
        """Prepares the division.

        Args:
            collectives: The collective operations of all ranks.
            name: The name of the tensors among all that the ranks exchange.
        """
        self._collectives = collectives
        self._name = name
        self.bytes_sent = 0

    def __call__(
        self,
        tasks: Sequence[Callable[[], tf.Tensor]],
        shapes: Sequence[tf.TensorShape],
        costs: Sequence[float],
    ) -> list[tf.Tensor]:
        """Returns the results of all tasks; to be called inside the graph on all ranks.

        Args:
            tasks: Functions that compute a float32 tensor each; only those of this rank
                are called.
            shapes: The shape of each result.
            costs: The cost of each task, in any unit, the same on all ranks.
        """
        num_ranks = self._collectives.num_ranks
        if num_ranks == 1:
            return [task() for task in tasks]
        ranks = owners(costs, num_ranks)
        mine = [
            tf.reshape(task(), [-1])
            for task, rank in zip(tasks, ranks, strict=True)
            if rank == self._collectives.rank
        ]
        message = tf.concat([tf.zeros([0]), *mine], 0)
        num_bytes = 4 * (message.shape[0] or 0)
        self.bytes_sent = message_sizes.sent_by_allgather(num_bytes, num_ranks)
        order = sorted(range(len(tasks)), key=lambda task: (ranks[task], task))
        sizes = [shapes[task].num_elements() for task in order]
        parts = tf.split(self._collectives.allgather(message, self._name), sizes)
        results = dict(zip(order, parts, strict=True))
        return [tf.reshape(results[task], shape) for task, shape in enumerate(shapes)]


def owners(costs: Sequence[float], num_ranks: int) -> list[int]:
    """Returns the rank that does each of some tasks.

    The most expensive task is assigned first, each to the rank with the least work so
    far. The most work of a rank is at most 4/3 of the least that is possible.

    Args:
        costs: The cost of each task, in any unit.
        num_ranks: The number of ranks.

    Source: Graham 1969, "Bounds on multiprocessing timing anomalies", theorem 3.
    """
    work = [0.0] * num_ranks
    ranks = [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: (-costs[task], task)):
        ranks[task] = min(range(num_ranks), key=lambda rank: (work[rank], rank))
        work[ranks[task]] += costs[task]
    return ranks
