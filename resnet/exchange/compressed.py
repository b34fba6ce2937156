"""From each rank's gradients to the mean of all ranks' compressed gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from resnet.compression import vectors
from resnet.config.compression import CompressionSettings
from resnet.config.step_settings import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount, measure_exchange
from resnet.exchange.coordinates import RandomCoordinates
from resnet.exchange.gathered import GatheredMessages
from resnet.exchange.gradients import (
    Exchanged,
    GradientExchange,
    nan_unless_finite,
)
from resnet.exchange.low_rank import LowRankMatrices
from resnet.exchange.sliced import SlicedMessages


class CompressedExchange(GradientExchange):
    """Averages what the ranks send of their compressed gradients.

    The mean is the same on all ranks. With error feedback, what a rank has not sent of
    a vector is added to the vector of the next step.

    Sources: sands-lab/layer-wise-aaai20, CIFAR10/core.py; for error feedback,
    Karimireddy et al. 2019, arXiv:1901.09847.
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
            shapes: Shape of each variable by its name, the same on all ranks.
            compression: The settings of compression.
            seed: Seed of the random numbers that the methods draw.

        Raises:
            AgreedError: On all ranks, if the settings don't fit the variables.
        """
        super().__init__(communicator.collectives, list(shapes))
        self._compression = compression
        sizes = {
            name: tf.TensorShape(one).num_elements() for name, one in shapes.items()
        }
        self._sizes = list(sizes.values())
        vector_sizes = vectors.sizes(sizes, compression.compress)
        self._means_of = _method(communicator, shapes, vector_sizes, compression, seed)
        self._residuals: dict[str, tf.Variable] = {}
        if compression.keeps_residuals:
            self._residuals = {
                name: tf.Variable(tf.zeros([size]))
                for name, size in vector_sizes.items()
            }
        self.rank_variables = {
            **{f"residual/{name}": one for name, one in self._residuals.items()},
            **self._means_of.rank_variables,
        }

    def __call__(
        self,
        gradients: Sequence[tf.Tensor],
        loss: tf.Tensor,
        flags: tf.Tensor,
        settings: StepSettings,
    ) -> Exchanged:
        """Returns the means over ranks, as `GradientExchange` does."""
        # A message may lack the value that isn't finite, so the loss must tell it.
        local_loss = nan_unless_finite(loss, gradients[0])
        means = self._mean_of_status(local_loss, flags)
        mean_gradients, account = self._mean_of_gradients(gradients, settings)
        return Exchanged(
            gradients=mean_gradients,
            local_loss=local_loss,
            loss=nan_unless_finite(means[0], mean_gradients[0]),
            flags=means[1:],
            account=account,
        )

    def _mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        vectors = self._to_send(gradients, settings)
        means, left, traffic = self._means_of(
            vectors, settings.step, self._ratio_at(settings.step)
        )
        account = measure_exchange(traffic, gradients, means, vectors, left)
        self._keep(vectors, left)
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
        vectors = self._as_vectors(gradients)
        if not self._residuals:
            return vectors
        pairs = zip(vectors, self._residuals.values(), strict=True)
        return [vector + residual for vector, residual in pairs]

    def _keep(self, vectors: Sequence[tf.Tensor], left: Sequence[tf.Tensor]) -> None:
        """Keeps what was not sent of the vectors."""
        del vectors
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


def _method(
    communicator: Communicator,
    shapes: Mapping[str, Sequence[int]],
    vector_sizes: dict[str, int],
    compression: CompressionSettings,
    seed: int,
) -> GatheredMessages | RandomCoordinates | LowRankMatrices:
    """Returns the exchange of vectors that the settings ask for."""
    if compression.method == "randomk":
        return RandomCoordinates(communicator, vector_sizes, seed)
    if compression.method == "powersgd":
        return LowRankMatrices(communicator, shapes, compression.powersgd_rank, seed)
    is_sliced = compression.exchange == "sliced"
    kind = SlicedMessages if is_sliced else GatheredMessages
    return kind(communicator, vector_sizes, compression, seed)
