"""From each rank's gradients to the mean of all ranks' compressed gradients."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from resnet.config import compression
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange import transports
from resnet.exchange.account import ExchangeAccount, measure_exchange
from resnet.exchange.codecs import CODECS
from resnet.exchange.gradients import GradientExchange


def make_exchange(
    config: Config, shapes: Mapping[str, Sequence[int]], communicator: Communicator
) -> GradientExchange:
    """Returns the exchange of gradients that the settings of a run ask for.

    Args:
        config: The settings; the exchange must not be "auto".
        shapes: Shape of each variable by its name, in the order of the gradients.

    Raises:
        AgreedError: On all ranks, if the settings don't fit the variables or a host.
    """
    if config.compress == "none":
        return GradientExchange(communicator.collectives, list(shapes))
    return CompressedExchange(communicator, shapes, config, config.seed)


class CompressedExchange(GradientExchange):
    """Averages what the ranks send of their compressed gradients.

    The mean is the same on all ranks. What a rank has not sent of a vector may be sent
    in later steps (`codecs.codec.Residuals`).

    Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py.
    """

    _sends_checked_loss = True  # A message may lack the value that isn't finite.

    def __init__(
        self,
        communicator: Communicator,
        shapes: Mapping[str, Sequence[int]],
        settings: CompressionSettings,
        seed: int,
    ) -> None:
        """Prepares the exchange.

        Args:
            shapes: Shape of each variable by its name, the same on all ranks.
            settings: The settings of compression; for a method with a momentum, those
                of the run.
            seed: Seed of the random numbers that the methods draw.

        Raises:
            AgreedError: On all ranks, if the settings don't fit the variables or a
                host.
        """
        super().__init__(communicator.collectives, list(shapes))
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        vectors = compression.vectors(shapes, settings.compress)
        self._means_of = transports.transport_of(communicator, vectors, settings, seed)
        memory = CODECS[settings.method].memory
        self._memory = memory(settings, vectors, communicator.num_ranks)
        self.has_momentum = self._memory.has_momentum
        self.rank_variables = {
            **self._memory.rank_variables,
            **self._means_of.rank_variables,
        }

    def reset_momentum(self) -> None:
        """Sets the velocities of this exchange to zero, if it has any."""
        self._memory.reset_momentum()

    def _mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        vectors = self._memory.to_send(gradients, settings)
        ratio = self._memory.ratio_at(settings.step)
        means, left, traffic = self._means_of(vectors, settings.step, ratio)
        account = measure_exchange(traffic, gradients, means, vectors, left)
        self._memory.keep(vectors, left)
        if len(means) < len(gradients):
            means = tf.split(means[0], self._sizes)
        return [
            tf.reshape(mean, gradient.shape)
            for mean, gradient in zip(means, gradients, strict=True)
        ], account
