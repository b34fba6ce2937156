"""AdamW: updates divided by the size of a variable's recent gradients."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.step_settings import StepSettings
from resnet.optim.momentum import Momentum


class AdamW(Momentum):
    """Adam with decoupled weight decay.

    velocity = momentum * velocity + (1 - momentum) * gradient
    square = beta2 * square + (1 - beta2) * gradient^2
    mean = velocity / bias_correction1                                      (plain)
    mean = (momentum * velocity + (1 - momentum) * gradient)
        / (momentum * bias_correction1 + 1 - momentum)                      (Nesterov)
    variable = (1 - learning_rate * weight_decay) * variable
        - learning_rate * mean / (sqrt(square / bias_correction2) + epsilon)

    where the bias corrections are what the first two lines make of gradients of 1. With
    a constant momentum they are 1 - momentum^t and 1 - beta2^t after t steps. With
    Nesterov's update it is NAdam without a schedule of the momentum.

    Attributes:
        squares: The mean squared gradients of each variable, float32, zeros at first.
        bias_corrections: Both bias corrections of each variable, `[num_variables, 2]`,
            float32. They differ where variables had a learning rate of 0.

    Sources: Kingma and Ba 2014, arXiv:1412.6980, algorithm 1; Loshchilov and Hutter
    2017, arXiv:1711.05101, algorithm 2; Dozat 2016, "Incorporating Nesterov Momentum
    into Adam".
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        decays: Sequence[bool],
        nesterov: bool = False,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        """Creates the moving averages of the gradients.

        Args:
            variables: The variables that are trained.
            decays: Whether weight decay applies to each variable.
            nesterov: Whether the update is Nesterov's.
            beta2: The decay of the mean squared gradients.
            epsilon: What is added to their square roots.
        """
        super().__init__(variables, decays, nesterov)
        self.beta2 = beta2
        self.epsilon = epsilon
        self.squares = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        self.bias_corrections = tf.Variable(tf.zeros([len(self.variables), 2]))

    def reset(self) -> None:
        """Forgets all gradients."""
        super().reset()
        for variable in (*self.squares, self.bias_corrections):
            variable.assign(tf.zeros_like(variable))

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        settings: StepSettings,
        rate_factors: Sequence[float] = (),
    ) -> None:
        """Updates the variables by one step; to be called inside the graph.

        Args:
            gradients: Mean gradients, one for each variable.
            settings: The hyperparameters of the step; the momentum is that of the
                phase.
            rate_factors: The factor of each variable's learning rate, where variables
                of factor 0, and their averages, stay as they are; empty for 1.
        """
        factors = {
            index: factor
            for factor, indices in self._indices_by_factor(gradients, rate_factors)
            for index in indices
        }
        decays = tf.stack([settings.nesterov_momentum, self.beta2])
        moves = tf.constant([[index in factors] for index in range(len(gradients))])
        old = self.bias_corrections
        new = old.assign(tf.where(moves, decays * old + (1 - decays), old))
        for index, factor in factors.items():
            scaled = settings._replace(learning_rate=settings.learning_rate * factor)
            self._apply_to(index, gradients[index], scaled, *tf.unstack(new[index]))

    def _apply_to(
        self,
        index: int,
        gradient: tf.Tensor,
        settings: StepSettings,
        bias_correction1: tf.Tensor,
        bias_correction2: tf.Tensor,
    ) -> None:
        rate, momentum = settings.learning_rate, settings.nesterov_momentum
        velocity, square = self.velocities[index], self.squares[index]
        mean = velocity.assign(momentum * velocity + (1 - momentum) * gradient)
        mean_square = square.assign(
            self.beta2 * square + (1 - self.beta2) * tf.square(gradient)
        )
        if self.nesterov:
            mean = momentum * mean + (1 - momentum) * gradient
            bias_correction1 = momentum * bias_correction1 + (1 - momentum)
        size = tf.sqrt(mean_square / bias_correction2) + self.epsilon
        change = (rate / bias_correction1) * mean / size
        variable = self.variables[index]
        kept = 1 - rate * settings.weight_decay if self.decays[index] else 1.0
        variable.assign(kept * variable - change)
