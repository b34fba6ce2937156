"""Sends short vectors whole, and compresses the others."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from resnet.config.compression import CompressionSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import Traffic
from resnet.exchange.vector_exchange import Means, VectorExchange


class ShortVectorsWhole(VectorExchange):
    """Averages vectors of fewer than `dense_below` values as they are.

    Biases and the variables of normalizations are few values, and matter much: of 64
    values, 1 % is one.

    Source: synxlin/deep-gradient-compression, whose train.py compresses variables of
    two or more dimensions only.
    """

    def __init__(
        self,
        kind: type[VectorExchange],
        communicator: Communicator,
        shapes: Mapping[str, Sequence[int]],
        compression: CompressionSettings,
        seed: int,
    ) -> None:
        """Prepares the exchange.

        Args:
            kind: The exchange of the other vectors.
            communicator: The ranks.
            shapes: Shape of the gradient in each vector by its name.
            compression: The settings of compression.
            seed: Seed of the random numbers that the methods draw.
        """
        super().__init__(communicator, shapes, compression, seed)
        self._is_whole = [size < compression.dense_below for size in self._sizes]
        others = {
            name: shape
            for (name, shape), is_whole in zip(
                self._shapes.items(), self._is_whole, strict=True
            )
            if not is_whole
        }
        self._others = kind(communicator, others, compression, seed) if others else None
        if self._others:
            self.rank_variables = self._others.rank_variables

    def __call__(self, flat: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any) -> Means:
        """Returns the means over ranks, as `VectorExchange` says."""
        numbers = range(len(flat))
        whole = [number for number in numbers if self._is_whole[number]]
        rest = [number for number in numbers if not self._is_whole[number]]
        means, left = list(flat), [tf.zeros_like(vector) for vector in flat]
        traffic = Traffic.of_allreduce(
            sum(self._sizes[number] for number in whole), self._num_ranks
        )
        for number, mean in zip(
            whole,
            self._collectives.allreduce_mean(
                [flat[number] for number in whole],
                [f"whole/{self._names[number]}" for number in whole],
            ),
            strict=True,
        ):
            means[number] = mean
        if self._others:
            others = self._others([flat[number] for number in rest], step, ratio)
            for number, mean, lacking in zip(
                rest, others.means, others.left, strict=True
            ):
                means[number], left[number] = mean, lacking
            traffic = traffic.plus(others.traffic)
        return Means(means, left, traffic)
