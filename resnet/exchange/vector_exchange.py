"""What the exchanges of vectors have in common, one for each way of compressing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from resnet.config.compression import CompressionSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import Traffic


class Means(NamedTuple):
    """The result of an exchange of vectors.

    Attributes:
        means: Mean over ranks of what was sent of each vector, `[n]` float32 each, the
            same on all ranks.
        left: What this rank has not sent of each of its own vectors, `[n]` float32.
        traffic: The bytes of it.
    """

    means: list[tf.Tensor]
    left: list[tf.Tensor]
    traffic: Traffic


class VectorExchange:
    """Averages what the ranks send of some vectors; a subclass says what that is.

    Attributes:
        rank_variables: The state of this rank that the exchange keeps from step to
            step, by its stored name; none unless a subclass has some.
    """

    def __init__(
        self,
        communicator: Communicator,
        shapes: Mapping[str, Sequence[int]],
        compression: CompressionSettings,
        seed: int,
    ) -> None:
        """Prepares the exchange.

        Args:
            communicator: The ranks.
            shapes: Shape of the gradient in each vector by its name, the same on all
                ranks (`vectors.shapes`).
            compression: The settings of compression.
            seed: Seed of the random numbers that the methods draw.

        Raises:
            AgreedError: On all ranks, if the settings don't fit the shapes.
        """
        self.rank_variables: dict[str, tf.Variable] = {}
        self._collectives = communicator.collectives
        self._rank, self._num_ranks = communicator.rank, communicator.num_ranks
        self._shapes = dict(shapes)
        self._names = list(shapes)
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        self._compression = compression
        self._seed = seed
        self._prepare()

    def _prepare(self) -> None:
        """Makes what else a subclass keeps, from the arguments of the constructor."""

    def __call__(self, flat: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any) -> Means:
        """Returns the means over ranks; to be called inside the graph of a step.

        Args:
            flat: The vectors of this rank, `[n]` float32 each.
            step: Number of the step, an int64 scalar.
            ratio: Fraction of the values to keep, for methods that keep some: a number,
                or a float64 scalar.
        """
        raise NotImplementedError

    def _mean(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the mean over ranks of a dense tensor."""
        (mean,) = self._collectives.allreduce_mean([tensor], [f"compressed/{name}"])
        return mean
