"""Gradient descent with momentum, whose velocity holds no learning rate.

velocity = velocity_factor * velocity + gradient
direction = velocity                                   (plain)
direction = gradient + nesterov_momentum * velocity    (Nesterov)
variable = variable - learning_rate * direction

with the factors of `StepSettings`. For variables that decay, the decay times the
variable is added to the gradient first. Where a group has a factor of the learning
rate, this term is divided by the factor unless `StepSettings.decay_is_scaled`, so that
the factor has no effect on it.

Source: TensorFlow 1's MomentumOptimizer, with use_nesterov as in the TPU recipe;
Sutskever et al. 2013, "On the importance of initialization and momentum".
"""

from collections.abc import Sequence

import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
from resnet.optim.groups import Group, Rule


def update(group: Group, gradients: Sequence[tf.Tensor], settings: StepSettings) -> int:
    """Updates a group (`Rule.update`) by the compiled op, or by stock ops."""
    decay = settings.decay / (1.0 if settings.decay_is_scaled else group.rate_factor)
    library = native.ops()
    if library is not None:
        library.resnet_momentum(
            variables=[variable.handle for variable in group.variables],
            velocities=[velocity.handle for velocity in group.slot("velocity")],
            gradients=gradients,
            learning_rate=settings.learning_rate * group.rate_factor,
            momentum=settings.velocity_factor,
            nesterov_momentum=settings.nesterov_momentum,
            nesterov=group.config.nesterov,
            weight_decays=[decay * decays for decays in group.decays],
        )
        return 0
    for variable, velocity, gradient, decays in zip(
        group.variables, group.slot("velocity"), gradients, group.decays, strict=True
    ):
        if decays and decay:
            gradient = gradient + decay * variable
        direction = velocity.assign(settings.velocity_factor * velocity + gradient)
        if group.config.nesterov:
            direction = gradient + settings.nesterov_momentum * direction
        variable.assign_sub(settings.learning_rate * group.rate_factor * direction)
    return 0


RULE = Rule(update)
