"""Gradient descent with momentum."""

from collections.abc import Iterable, Sequence

import tensorflow as tf

from resnet import native
from resnet.config.step_settings import StepSettings


class Momentum:
    """Gradient descent with momentum, whose velocity holds no learning rate.

    velocity = velocity_factor * velocity + gradient
    direction = velocity                                   (plain)
    direction = gradient + nesterov_momentum * velocity    (Nesterov)
    variable = variable - learning_rate * direction

    with the factors of `StepSettings`. For variables that decay, `weight_decay` times
    the variable is added to the gradient first. Where a variable has a factor of the
    learning rate, this term is divided by the factor unless
    `StepSettings.decay_is_scaled`, so that the factor has no effect on the decay.

    Attributes:
        variables: The variables that are trained.
        decays: Whether each variable decays.
        nesterov: Whether the update is Nesterov's.
        velocities: The velocity of each variable, float32, zeros at first.

    Source: TensorFlow 1's MomentumOptimizer, with use_nesterov as in the TPU recipe;
    Sutskever et al. 2013, "On the importance of initialization and momentum".
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        decays: Sequence[bool],
        nesterov: bool = True,
    ) -> None:
        """Creates the velocities.

        Args:
            variables: The variables that are trained.
            decays: Whether weight decay applies to each variable.
            nesterov: Whether the update is Nesterov's.
        """
        self.variables = list(variables)
        self.decays = list(decays)
        self.nesterov = nesterov
        self.velocities = [
            tf.Variable(tf.zeros_like(variable)) for variable in variables
        ]

    def reset(self) -> None:
        """Sets the velocities to zero."""
        for velocity in self.velocities:
            velocity.assign(tf.zeros_like(velocity))

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
            rate_factors: The factor of each variable's learning rate, where variables
                of factor 0, and their velocities, stay as they are; empty for 1.
        """
        library = native.ops()
        if library is None:
            self.apply_with_stock_ops(gradients, settings, rate_factors)
            return
        for factor, indices in self._indices_by_factor(gradients, rate_factors):
            weight_decay = _decay(settings, factor)
            library.resnet_momentum(
                variables=[self.variables[index].handle for index in indices],
                velocities=[self.velocities[index].handle for index in indices],
                gradients=[gradients[index] for index in indices],
                learning_rate=settings.learning_rate * factor,
                momentum=settings.velocity_factor,
                nesterov_momentum=settings.nesterov_momentum,
                nesterov=self.nesterov,
                weight_decays=[weight_decay * self.decays[index] for index in indices],
            )

    def apply_with_stock_ops(
        self,
        gradients: Sequence[tf.Tensor],
        settings: StepSettings,
        rate_factors: Sequence[float] = (),
    ) -> None:
        """Does what `apply` does, with TensorFlow's own ops."""
        rate, velocity_factor, nesterov_momentum, *_ = settings
        for factor, indices in self._indices_by_factor(gradients, rate_factors):
            weight_decay = _decay(settings, factor)
            for index in indices:
                variable, gradient = self.variables[index], gradients[index]
                velocity = self.velocities[index]
                if self.decays[index] and weight_decay:
                    gradient = gradient + weight_decay * variable
                new = velocity.assign(velocity_factor * velocity + gradient)
                direction = gradient + nesterov_momentum * new if self.nesterov else new
                variable.assign_sub(rate * factor * direction)

    def _indices_by_factor(
        self, gradients: Sequence[tf.Tensor], rate_factors: Sequence[float]
    ) -> Iterable[tuple[float, list[int]]]:
        """Returns each factor other than 0, and the indices of its variables.

        Raises:
            ValueError: If there isn't one gradient and one factor for each variable.
        """
        factors = rate_factors or [1.0] * len(self.variables)
        groups: dict[float, list[int]] = {}
        for index, (_, _, factor) in enumerate(
            zip(self.variables, gradients, factors, strict=True)
        ):
            if factor:
                groups.setdefault(factor, []).append(index)
        return groups.items()


def _decay(settings: StepSettings, factor: float) -> float:
    """Returns the factor of a variable that is added to its gradient."""
    return settings.weight_decay / (1.0 if settings.decay_is_scaled else factor)
