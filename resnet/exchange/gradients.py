"""Averages the gradients of all ranks, as they are or compressed; or leaves them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from resnet.config import compression
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.distributed.collectives import Collectives
from resnet.distributed.communicator import Communicator
from resnet.exchange import transports
from resnet.exchange.account import ExchangeAccount, Traffic, measure_exchange
from resnet.exchange.codecs import CODECS


class Exchanged(NamedTuple):
    """The result of an exchange, as tensors of the step's graph.

    The gradients, the loss and the status flags (`[num_flags]` float32, more than 0
    where any rank has set the flag) are means over ranks, `local_loss` is that of this
    rank. A loss is NaN if the gradients of the same are not finite.
    """

    gradients: list[tf.Tensor]
    local_loss: tf.Tensor
    loss: tf.Tensor
    flags: tf.Tensor
    account: ExchangeAccount


class GradientExchange:
    """Averages gradients over all ranks, and with them the loss and status flags.

    The loss and the flags are one small tensor that is reduced while the gradients are
    still being computed. So all ranks agree on a stop request, a save request or a
    non-finite loss without an extra round of communication. `rank_variables` are what
    an exchange keeps from step to step (`TrainState.rank_variables`), `has_momentum` is
    whether the mean gradients contain the momentum, which the optimizer must not add.
    """

    has_momentum = False
    # Whether the loss that a rank sends is NaN where its gradients are not finite. Here
    # the mean gradients show it, and the loss need not wait for the gradients.
    _sends_checked_loss = False

    def __init__(self, collectives: Collectives, names: Sequence[str]) -> None:
        self.rank_variables: dict[str, tf.Variable] = {}
        self.collectives = collectives
        self._names = [f"gradient/{name}" for name in names]

    def __call__(
        self,
        gradients: Sequence[tf.Tensor],
        loss: tf.Tensor,
        flags: tf.Tensor,
        settings: StepSettings,
        last: int = 0,
    ) -> Exchanged:
        """Returns the means over ranks; to be called inside the graph of a step.

        The gradients of this rank are dense float32, in the order of the names of
        variables, which are the same on all ranks; that at the place `last` is computed
        last: it is that of the first variable which is trained. The mean loss is a
        float32 scalar, and the flags are `[num_flags]` float32, each 0 or 1.
        """
        local_loss = nan_unless_finite(loss, gradients[last])
        sent_loss = local_loss if self._sends_checked_loss else loss
        own = tf.concat([[sent_loss], flags], axis=0)
        (means,) = self.collectives.allreduce_mean([own], ["loss_and_flags"])
        mean_gradients, account = self.mean_of_gradients(gradients, settings)
        return Exchanged(
            gradients=mean_gradients,
            local_loss=local_loss,
            loss=nan_unless_finite(means[0], mean_gradients[last]),
            flags=means[1:],
            account=account,
        )

    def reset_momentum(self) -> None:
        """Sets velocities to zero, if there are any; what is yet to be sent is kept."""
        for name, variable in self.rank_variables.items():
            if name.startswith("velocity/"):
                variable.assign(tf.zeros_like(variable))

    def mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        """Returns the mean gradients over ranks, and what their exchange costs."""
        del settings
        means = self.collectives.allreduce_mean(gradients, self._names)
        num_values = sum(gradient.shape.num_elements() for gradient in gradients)
        traffic = Traffic.of_allreduce(num_values, self.collectives.num_ranks)
        return means, measure_exchange(traffic, gradients, means)


class LocalExchange(GradientExchange):
    """Gives each rank its own gradients, and the mean loss and flags of all ranks.

    For the steps of local SGD: also there, all ranks agree on a stop request or a
    non-finite loss. The loss is NaN if the gradients of any rank are not finite.
    """

    _sends_checked_loss = True  # The gradients of the other ranks don't show it.

    def mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        """Returns the gradients of this rank, and no cost."""
        del settings
        return list(gradients), measure_exchange(Traffic(0, 0), gradients, gradients)


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
        """Prepares the exchange; for a method with a momentum, by the run's settings.

        Raises:
            AgreedError: On all ranks, if the settings don't fit the variables or a
                host.
        """
        super().__init__(communicator.collectives, list(shapes))
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        vectors = compression.vectors(shapes, settings.compress)
        transport = transports.kind_of(settings)
        self._means_of = transport(communicator, vectors, settings, seed)
        memory = CODECS[settings.method].memory
        self._memory = memory(settings, vectors, communicator.num_ranks)
        self.has_momentum = compression.METHODS[settings.method].has_momentum
        self.rank_variables = {
            **self._memory.rank_variables,
            **self._means_of.rank_variables,
        }

    def mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        """Returns the mean over ranks of what they send of any values, and the cost."""
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


def make_exchange(
    config: Config, shapes: Mapping[str, Sequence[int]], communicator: Communicator
) -> GradientExchange:
    """Returns the exchange of gradients that the settings of a run ask for.

    "auto" is resolved; the variables by name are in the order of the gradients.

    Raises:
        AgreedError: On all ranks, if the settings don't fit the variables or a host.
    """
    if config.compress == "none":
        return GradientExchange(communicator.collectives, list(shapes))
    return CompressedExchange(communicator, shapes, config, config.seed)


def nan_unless_finite(loss: tf.Tensor, last_gradient: tf.Tensor) -> tf.Tensor:
    """Returns the loss, or NaN if the gradient that is computed last is not finite.

    A NaN or infinity in any layer reaches that gradient. The loss alone doesn't show
    it: TensorFlow's max pooling lets a NaN vanish.
    """
    is_finite = tf.math.is_finite(tf.reduce_sum(last_gradient))
    return tf.where(is_finite, loss, np.float32(np.nan))
