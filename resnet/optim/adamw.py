"""AdamW: updates divided by the size of a variable's recent gradients."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.step_settings import StepSettings
from resnet.optim.momentum import Momentum


class AdamW(Momentum):
    """Adam with decoupled weight decay.

    velocity = momentum * velocity + (1 - momentum) * gradient
    square = beta2 * square + (1 - beta2) * gradient^2
    mean = velocity / velocity_weight                                       (plain)
    mean = (momentum * velocity + (1 - momentum) * gradient)
        / (momentum * velocity_weight + 1 - momentum)                       (Nesterov)
    variable = (1 - learning_rate * weight_decay) * variable
        - learning_rate * mean / (sqrt(square / square_weight) + epsilon)

    where velocity_weight and square_weight are what the first two lines make of
    gradients of 1, so the divisions by them correct the bias towards the zeros at
    first. With a constant momentum they are 1 - momentum^t and 1 - beta2^t after t
    steps. With Nesterov's update it is NAdam without a schedule of the momentum.

    Attributes:
        squares: The mean squared gradients of each variable, float32, zeros at first.
        weights: velocity_weight and square_weight of each variable, `[num_variables,
            2]`, float32. They differ where variables had a learning rate of 0.

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
        self.weights = tf.Variable(tf.zeros([len(self.variables), 2]))

    def reset(self) -> None:
        """Forgets all gradients."""
        super().reset()
        for variable in (*self.squares, self.weights):
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
        decays = tf.stack([settings.nesterov_momentum, self.beta2])
        factors = rate_factors or [1.0] * len(self.variables)
        moves = tf.constant([[factor != 0] for factor in factors])
        later = decays * self.weights + (1 - decays)
        weights = self.weights.assign(tf.where(moves, later, self.weights))
        for index, (gradient, factor) in enumerate(
            zip(gradients, factors, strict=True)
        ):
            if factor:
                rate = settings.learning_rate * factor
                scaled = settings._replace(learning_rate=rate)
                self._apply_to(index, gradient, scaled, tf.unstack(weights[index]))

    def _apply_to(
        self,
        index: int,
        gradient: tf.Tensor,
        settings: StepSettings,
        weights: Sequence[tf.Tensor],
    ) -> None:
        rate, momentum = settings.learning_rate, settings.nesterov_momentum
        weight, square_weight = weights
        velocity, square = self.velocities[index], self.squares[index]
        sums = velocity.assign(momentum * velocity + (1 - momentum) * gradient)
        squares = square.assign(
            self.beta2 * square + (1 - self.beta2) * tf.square(gradient)
        )
        if self.nesterov:
            sums = momentum * sums + (1 - momentum) * gradient
            weight = momentum * weight + (1 - momentum)
        size = tf.sqrt(squares / square_weight) + self.epsilon
        change = (rate / weight) * sums / size
        variable = self.variables[index]
        kept = 1 - rate * settings.weight_decay if self.decays[index] else 1.0
        variable.assign(kept * variable - change)
