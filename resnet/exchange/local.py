"""Steps of local SGD: the ranks share their losses and status flags, no gradients."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.step_settings import StepSettings
from resnet.distributed.collectives import Collectives
from resnet.exchange.account import ExchangeAccount, Traffic, measure_exchange
from resnet.exchange.gradients import GradientExchange


class LocalExchange(GradientExchange):
    """Gives each rank its own gradients, and the mean loss and flags of all ranks.

    So also in these steps all ranks agree on a stop request or a non-finite loss. The
    loss is NaN if the gradients of any rank are not finite.
    """

    _sends_checked_loss = True  # The gradients of the other ranks don't show it.

    def __init__(self, collectives: Collectives) -> None:
        """Prepares the exchange.

        Args:
            collectives: The collective operations of all ranks.
        """
        super().__init__(collectives, [])

    def _mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        del settings
        return list(gradients), measure_exchange(Traffic(0, 0), gradients, gradients)
