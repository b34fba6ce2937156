"""LARS: momentum with a learning rate for each layer, relative to its weights."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.step_settings import StepSettings
from resnet.optim import norms
from resnet.optim.momentum import Momentum


class Lars(Momentum):
    """Momentum whose gradients are scaled relative to the weights of each layer.

    trust = coefficient * |variable| / (|gradient| + weight_decay * |variable|)
    velocity = momentum * velocity + trust * (gradient + weight_decay * variable)
    variable = variable - learning_rate * velocity

    with the 2-norms of each variable and its gradient; where one of them is 0, trust is
    1. Variables that don't decay (those of batch normalization, and biases) are updated
    as `Momentum` does. Unlike here, the paper's velocity contains the learning rate;
    the setting `learning_rate_in_velocity` leads to the same updates.

    Source: You et al. 2017, arXiv:1708.03888, algorithm 1. MLPerf's reference leaves
    out the same variables; it adds an epsilon of 1e-7 to the denominator.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        decays: Sequence[bool],
        nesterov: bool = False,
        trust_coefficient: float = 0.001,
    ) -> None:
        """Creates the velocities.

        Args:
            variables: The variables that are trained.
            decays: Whether weight decay and scaling apply to each variable.
            nesterov: Whether the update is Nesterov's.
            trust_coefficient: The coefficient called eta in the paper.
        """
        super().__init__(variables, decays, nesterov)
        self.trust_coefficient = trust_coefficient

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
        scaled = [
            self._scaled(variable, gradient, settings.weight_decay)
            if decays
            else gradient
            for variable, gradient, decays in zip(
                self.variables, gradients, self.decays, strict=True
            )
        ]
        super().apply(scaled, settings._replace(weight_decay=0.0), rate_factors)

    def _scaled(
        self, variable: tf.Variable, gradient: tf.Tensor, weight_decay: float
    ) -> tf.Tensor:
        weight_norm, gradient_norm = norms.norm(variable), norms.norm(gradient)
        trust = tf.where(
            (weight_norm > 0) & (gradient_norm > 0),
            self.trust_coefficient
            * weight_norm
            / (gradient_norm + weight_decay * weight_norm),
            1.0,
        )
        return trust * (gradient + weight_decay * variable)
