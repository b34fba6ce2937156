"""SGDW: momentum whose weight decay acts on the variables directly."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.step_settings import StepSettings
from resnet.optim.momentum import Momentum


class Sgdw(Momentum):
    """Momentum with decoupled weight decay.

    velocity = momentum * velocity + gradient
    variable = (1 - learning_rate * weight_decay) * variable - learning_rate * velocity

    and with Nesterov's look-ahead as in `Momentum`. So the decay has the schedule of
    the learning rate, and no part in the velocity. Composer's DecoupledSGDW has the
    factor at the highest learning rate instead: weight_decay is its factor divided by
    this rate. A decay that is added to the gradient, as in `Momentum`, shrinks
    variables 1 / (1 - momentum) times as fast.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 1;
    mosaicml/composer, composer/optim/decoupled_weight_decay.py, DecoupledSGDW.
    """

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        settings: StepSettings,
        rate_factors: Sequence[float] = (),
    ) -> None:
        """Updates the variables by one step; to be called inside the graph.

        Args:
            gradients: Mean gradients, one for each variable.
            settings: The hyperparameters of the step.
            rate_factors: The factor of each variable's learning rate; empty for 1.
        """
        factors = rate_factors or [1.0] * len(self.variables)
        for variable, decays, factor in zip(
            self.variables, self.decays, factors, strict=True
        ):
            if decays and factor and settings.weight_decay:
                rate = settings.learning_rate * factor
                variable.assign((1 - rate * settings.weight_decay) * variable)
        super().apply(gradients, settings._replace(weight_decay=0.0), rate_factors)
