"""Steps of local SGD: the ranks share their losses and status flags, no gradients."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.step_settings import StepSettings
from resnet.distributed.collectives import Collectives
from resnet.exchange.account import Traffic, measure_exchange
from resnet.exchange.gradients import (
    Exchanged,
    GradientExchange,
    nan_unless_finite,
)


class LocalExchange(GradientExchange):
    """Gives each rank its own gradients, and the mean loss and flags of all ranks.

    So also in these steps all ranks agree on a stop request or a non-finite loss.
    """

    def __init__(self, collectives: Collectives) -> None:
        """Prepares the exchange.

        Args:
            collectives: The collective operations of all ranks.
        """
        super().__init__(collectives, [])

    def __call__(
        self,
        gradients: Sequence[tf.Tensor],
        loss: tf.Tensor,
        flags: tf.Tensor,
        settings: StepSettings,
    ) -> Exchanged:
        """Returns this rank's gradients and the means over ranks of loss and flags.

        The loss is NaN if the gradients of any rank are not finite.
        """
        local_loss = nan_unless_finite(loss, gradients[0])
        means = self._mean_of_status(local_loss, flags)
        return Exchanged(
            gradients=list(gradients),
            local_loss=local_loss,
            loss=means[0],
            flags=means[1:],
            account=measure_exchange(Traffic(0, 0), gradients, gradients),
        )
