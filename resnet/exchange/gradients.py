"""Averages the gradients of all ranks, or leaves each rank its own."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from resnet.config.phases import StepSettings
from resnet.distributed.collectives import Collectives
from resnet.exchange.account import ExchangeAccount, Traffic, measure_exchange


class Exchanged(NamedTuple):
    """The result of an exchange, as tensors of the step's graph.

    Attributes:
        gradients: Mean gradients over ranks, one for each variable.
        local_loss: Loss of this rank; NaN if its gradients are not finite.
        loss: Mean loss over ranks; NaN if the mean gradients are not finite.
        flags: Mean over ranks of each status flag, `[num_flags]` float32; more than 0
            where any rank has set the flag.
        account: What the exchange costs this rank.
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
    non-finite loss without an extra round of communication.

    Attributes:
        collectives: The collective operations of all ranks.
        has_momentum: Whether the mean gradients contain the momentum, so that the
            optimizer must not add its own.
        rank_variables: The state of this rank that the exchange keeps from step to
            step, by its stored name (`TrainState.rank_variables`): none.
    """

    has_momentum = False
    # Whether the loss that a rank sends is NaN where its gradients are not finite. Here
    # the mean gradients show it, and the loss need not wait for the gradients.
    _sends_checked_loss = False

    def __init__(self, collectives: Collectives, names: Sequence[str]) -> None:
        """Prepares the exchange.

        Args:
            names: Names of the variables, the same on all ranks.
        """
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

        Args:
            gradients: This rank's gradients, dense float32, in the order of the names.
            loss: This rank's mean loss, a float32 scalar.
            flags: This rank's status flags, `[num_flags]` float32, each 0 or 1.
            last: The place of the gradient that is computed last: that of the first
                variable which is trained.
        """
        local_loss = nan_unless_finite(loss, gradients[last])
        sent_loss = local_loss if self._sends_checked_loss else loss
        own = tf.concat([[sent_loss], flags], axis=0)
        (means,) = self.collectives.allreduce_mean([own], ["loss_and_flags"])
        mean_gradients, account = self._mean_of_gradients(gradients, settings)
        return Exchanged(
            gradients=mean_gradients,
            local_loss=local_loss,
            loss=nan_unless_finite(means[0], mean_gradients[last]),
            flags=means[1:],
            account=account,
        )

    def reset_momentum(self) -> None:
        """Sets the velocities of this exchange to zero, if it has any."""

    def _mean_of_gradients(
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

    def __init__(self, collectives: Collectives) -> None:
        """Prepares the exchange."""
        super().__init__(collectives, [])

    def _mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        del settings
        return list(gradients), measure_exchange(Traffic(0, 0), gradients, gradients)


def nan_unless_finite(loss: tf.Tensor, last_gradient: tf.Tensor) -> tf.Tensor:
    """Returns the loss, or NaN if the gradient that is computed last is not finite.

    A NaN or infinity in any layer reaches that gradient. The loss alone doesn't show
    it: TensorFlow's max pooling lets a NaN vanish.
    """
    is_finite = tf.math.is_finite(tf.reduce_sum(last_gradient))
    return tf.where(is_finite, loss, np.float32(np.nan))
