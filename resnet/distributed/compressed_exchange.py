"""From each rank's gradients to the mean of all ranks' compressed gradients."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from resnet.compression import vectors
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.distributed import exchange_account
from resnet.distributed.communicator import Communicator
from resnet.distributed.coordinate_exchange import RandomCoordinates
from resnet.distributed.exchange_account import ExchangeAccount
from resnet.distributed.gradient_exchange import (
    Exchanged,
    GradientExchange,
    nan_unless_finite,
)
from resnet.distributed.low_rank_exchange import LowRankMatrices
from resnet.distributed.message_exchange import (
    GatheredMessages,
    SlicedMessages,
)


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
        sizes = {
            name: tf.TensorShape(one).num_elements() for name, one in shapes.items()
        }
        self._sizes = list(sizes.values())
        vector_sizes = vectors.sizes(sizes, compression.compress)
        self._means_of = _method(communicator, shapes, vector_sizes, compression, seed)
        self._residuals: dict[str, tf.Variable] = {}
        if compression.error_feedback:
            self._residuals = {
                name: tf.Variable(tf.zeros([size]))
                for name, size in vector_sizes.items()
            }
        self._vector_names = list(vector_sizes)
        self.rank_variables = {
            **{f"residual/{name}": one for name, one in self._residuals.items()},
            **self._means_of.rank_variables,
        }

    def __call__(
        self,
        gradients: Sequence[tf.Tensor],
        loss: tf.Tensor,
        flags: tf.Tensor,
        step: tf.Tensor,
    ) -> Exchanged:
        """Returns the means over ranks, as `GradientExchange` does."""
        # A message may lack the value that isn't finite, so the loss must tell it.
        local_loss = nan_unless_finite(loss, gradients[0])
        means = self._mean_of_status(local_loss, flags)
        mean_gradients, account = self._mean_of_gradients(gradients, step)
        return Exchanged(
            gradients=mean_gradients,
            local_loss=local_loss,
            loss=nan_unless_finite(means[0], mean_gradients[0]),
            flags=means[1:],
            account=account,
        )

    def _mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], step: tf.Tensor
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        if len(self._vector_names) < len(flat):
            flat = [tf.concat(flat, axis=0)]
        flat = [
            vector + self._residuals[name] if name in self._residuals else vector
            for name, vector in zip(self._vector_names, flat, strict=True)
        ]
        means, left, traffic = self._means_of(flat, step)
        account = exchange_account.account(traffic, gradients, means, flat, left)
        for name, rest in zip(self._vector_names, left, strict=True):
            if name in self._residuals:
                self._residuals[name].assign(rest)
        if len(means) < len(gradients):
            means = tf.split(means[0], self._sizes)
        return [
            tf.reshape(mean, gradient.shape)
            for mean, gradient in zip(means, gradients, strict=True)
        ], account


def exchange_of_run(
    config: Config, shapes: Mapping[str, Sequence[int]], communicator: Communicator
) -> GradientExchange:
    """Returns the exchange of gradients that the settings of a run ask for.

    Args:
        config: The settings; the exchange must not be "auto".
        shapes: Shape of each variable by its name, in the order of the gradients.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if the settings don't fit the variables.
    """
    if config.compress == "none":
        return GradientExchange(communicator.collectives, list(shapes))
    return CompressedExchange(communicator, shapes, config, config.seed)


def _method(
    communicator: Communicator,
    shapes: Mapping[str, Sequence[int]],
    vector_sizes: dict[str, int],
    compression: CompressionSettings,
    seed: int,
) -> GatheredMessages | RandomCoordinates | LowRankMatrices:
    """Returns the exchange of vectors that the settings ask for."""
    if compression.method == "randomk":
        return RandomCoordinates(communicator, vector_sizes, compression.ratio, seed)
    if compression.method == "powersgd":
        return LowRankMatrices(communicator, shapes, compression.powersgd_rank, seed)
    is_sliced = compression.exchange == "sliced"
    kind = SlicedMessages if is_sliced else GatheredMessages
    return kind(communicator, vector_sizes, compression, seed)
