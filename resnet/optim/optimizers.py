"""From averaged gradients to new weights."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from resnet import native


class StepSettings(NamedTuple):
    """What an optimizer is told of one step; float32 scalars, but for `weight_decay`.

    Attributes:
        learning_rate: Of the step.
        momentum: What the velocity is multiplied with (`phases.momentum`).
        lookahead: Momentum of the phase, by which Nesterov's looks ahead.
        weight_decay: Times the variable, added to its gradient.
    """

    learning_rate: tf.Tensor
    momentum: tf.Tensor
    lookahead: tf.Tensor
    weight_decay: float


class Momentum:
    """Gradient descent with momentum; the velocity has no learning rate in it.

    velocity = momentum * velocity + gradient
    variable = variable - learning_rate * velocity                             (plain)
    variable = variable - learning_rate * (gradient + lookahead * velocity) (Nesterov)

    where the gradient has `weight_decay` times the variable added to it first, on the
    variables that decay.

    Attributes:
        variables: What is trained.
        velocities: One for each variable, float32, zeros at first.

    Source: TensorFlow 1's MomentumOptimizer, with use_nesterov as in the TPU recipe;
    Sutskever et al. 2013, "On the importance of initialization and momentum".
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        decays: Sequence[bool],
        nesterov: bool = True,
    ) -> None:
        """Makes the velocities.

        Args:
            variables: What is trained.
            decays: For each variable, whether weight decay is for it.
            nesterov: Whether momentum looks ahead.
        """
        self.variables = list(variables)
        self.decays = list(decays)
        self.nesterov = nesterov
        self.velocities = [tf.Variable(tf.zeros_like(one)) for one in variables]

    def forget(self) -> None:
        """Sets the velocities to zero."""
        for velocity in self.velocities:
            velocity.assign(tf.zeros_like(velocity))

    def apply(self, gradients: Sequence[tf.Tensor], settings: StepSettings) -> None:
        """Moves the variables by one step; to be called inside the graph."""
        library = native.ops()
        if library is None:
            self.apply_with_stock_ops(gradients, settings)
            return
        library.resnet_momentum(
            variables=[variable.handle for variable in self.variables],
            velocities=[velocity.handle for velocity in self.velocities],
            gradients=gradients,
            learning_rate=settings.learning_rate,
            momentum=settings.momentum,
            lookahead=settings.lookahead,
            nesterov=self.nesterov,
            weight_decays=[settings.weight_decay * decays for decays in self.decays],
        )

    def apply_with_stock_ops(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> None:
        """Does what `apply` does, with TensorFlow's own ops."""
        rate, momentum, lookahead, weight_decay = settings
        for variable, velocity, gradient, decays in zip(
            self.variables, self.velocities, gradients, self.decays, strict=True
        ):
            if decays and weight_decay:
                gradient = gradient + weight_decay * variable
            new = velocity.assign(momentum * velocity + gradient)
            direction = gradient + lookahead * new if self.nesterov else new
            variable.assign_sub(rate * direction)


class Lars(Momentum):
    """Momentum whose gradients are scaled to the weights, layer by layer.

    trust = coefficient * |variable| / (|gradient| + weight_decay * |variable|)
    velocity = momentum * velocity + trust * (gradient + weight_decay * variable)
    variable = variable - learning_rate * velocity

    with 2-norms over each variable; where one of them is 0, trust is 1. Variables that
    don't decay (those of normalizations and, here, biases) are moved as `Momentum`
    moves them. The paper's velocity has the learning rate in it, which
    `phases.momentum` makes up for.

    Source: You et al. 2017, arXiv:1708.03888, algorithm 1; which variables are left
    out, and epsilon 0, are those of MLPerf's reference.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        decays: Sequence[bool],
        nesterov: bool = False,
        trust_coefficient: float = 0.001,
    ) -> None:
        """Makes the velocities.

        Args:
            variables: What is trained.
            decays: For each variable, whether weight decay and scaling are for it.
            nesterov: Whether momentum looks ahead.
            trust_coefficient: The paper's eta.
        """
        super().__init__(variables, decays, nesterov)
        self.trust_coefficient = trust_coefficient

    def apply(self, gradients: Sequence[tf.Tensor], settings: StepSettings) -> None:
        """Moves the variables by one step; to be called inside the graph."""
        scaled = [
            self._scaled(variable, gradient, settings.weight_decay)
            if decays
            else gradient
            for variable, gradient, decays in zip(
                self.variables, gradients, self.decays, strict=True
            )
        ]
        super().apply(scaled, settings._replace(weight_decay=0.0))

    def _scaled(
        self, variable: tf.Variable, gradient: tf.Tensor, weight_decay: float
    ) -> tf.Tensor:
        weight_norm, gradient_norm = tf.norm(variable), tf.norm(gradient)
        trust = tf.where(
            (weight_norm > 0) & (gradient_norm > 0),
            self.trust_coefficient
            * weight_norm
            / (gradient_norm + weight_decay * weight_norm),
            1.0,
        )
        return trust * (gradient + weight_decay * variable)
