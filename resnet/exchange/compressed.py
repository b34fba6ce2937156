"""From each rank's gradients to the mean of all ranks' compressed gradients."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from resnet.config.compression import CompressionSettings
from resnet.config.step_settings import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount, measure_exchange
from resnet.exchange.codecs import vectors
from resnet.exchange.coordinates import RandomCoordinates
from resnet.exchange.gathered import GatheredMessages
from resnet.exchange.gradients import GradientExchange
from resnet.exchange.low_rank import LowRankMatrices
from resnet.exchange.sliced import SlicedMessages
from resnet.exchange.vector_exchange import VectorExchange
from resnet.exchange.whole_vectors import ShortVectorsWhole


class CompressedExchange(GradientExchange):
    """Averages what the ranks send of their compressed gradients.

    The mean is the same on all ranks. With error feedback, what a rank has not sent of
    a vector is added to the vector of the next step. Unlike in algorithm 1 of the
    source, vectors and residuals are gradients without the learning rate: what is sent
    later counts with the rate of that later step.

    Sources: sands-lab/layer-wise-aaai20, CIFAR10/core.py; for error feedback,
    Karimireddy et al. 2019, arXiv:1901.09847.
    """

    _sends_checked_loss = True  # A message may lack the value that isn't finite.

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
            shapes: Shape of each variable by its name, the same on all ranks.
            compression: The settings of compression.
            seed: Seed of the random numbers that the methods draw.

        Raises:
            AgreedError: On all ranks, if the settings don't fit the variables.
        """
        super().__init__(communicator.collectives, list(shapes))
        self._compression = compression
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        of_vectors = vectors.shapes(shapes, compression.compress)
        kind: Callable[..., VectorExchange] = _kind_of(compression)
        if compression.dense_below:
            kind = functools.partial(ShortVectorsWhole, _kind_of(compression))
        self._means_of = kind(communicator, of_vectors, compression, seed)
        self._residuals: dict[str, tf.Variable] = {}
        if compression.keeps_residuals:
            self._residuals = {
                name: tf.Variable(tf.zeros([math.prod(shape)]))
                for name, shape in of_vectors.items()
            }
        self.rank_variables = {
            **{f"residual/{name}": one for name, one in self._residuals.items()},
            **self._means_of.rank_variables,
        }

    def _mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        flat = self._to_send(gradients, settings)
        means, left, traffic = self._means_of(
            flat, settings.step, self._ratio_at(settings.step)
        )
        account = measure_exchange(traffic, gradients, means, flat, left)
        self._keep(flat, left)
        if len(means) < len(gradients):
            means = tf.split(means[0], self._sizes)
        return [
            tf.reshape(mean, gradient.shape)
            for mean, gradient in zip(means, gradients, strict=True)
        ], account

    def _to_send(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> list[tf.Tensor]:
        """Returns the vectors that this rank compresses, `[n]` float32 each."""
        del settings
        flat = self._as_vectors(gradients)
        if not self._residuals:
            return flat
        pairs = zip(flat, self._residuals.values(), strict=True)
        return [vector + residual for vector, residual in pairs]

    def _keep(self, flat: Sequence[tf.Tensor], left: Sequence[tf.Tensor]) -> None:
        """Keeps what was not sent of the vectors."""
        del flat
        if self._residuals:
            for residual, rest in zip(self._residuals.values(), left, strict=True):
                residual.assign(rest)

    def _ratio_at(self, step: tf.Tensor) -> Any:
        """Returns the fraction of the values that topk and randomk keep in a step."""
        del step
        return self._compression.ratio

    def _as_vectors(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        is_one = self._compression.compress == "entiremodel"
        return [tf.concat(flat, axis=0)] if is_one else flat


def _kind_of(compression: CompressionSettings) -> type[VectorExchange]:
    """Returns the class of the exchange, by what a method sends."""
    if compression.method == "randomk":
        return RandomCoordinates
    if compression.method == "powersgd":
        return LowRankMatrices
    return SlicedMessages if compression.exchange == "sliced" else GatheredMessages
