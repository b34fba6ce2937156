"""LARS: momentum with a learning rate for each layer, relative to its weights.

trust = coefficient * |variable| / (|gradient| + weight_decay * |variable|)
velocity = momentum * velocity + trust * (gradient + weight_decay * variable)
variable = variable - learning_rate * velocity

with the 2-norms of each variable and its gradient; where one of them is 0, trust is 1.
Variables that don't decay (those of batch normalization, and biases) are updated by
`momentum`. Unlike here, the paper's velocity contains the learning rate; the setting
`learning_rate_in_velocity` leads to the same updates.

Source: You et al. 2017, arXiv:1708.03888, algorithm 1. MLPerf's reference leaves out
the same variables; it adds an epsilon of 1e-7 to the denominator.
"""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.phases import StepSettings
from resnet.optim import momentum, norms
from resnet.optim.groups import Group, Rule, velocities


def update(group: Group, gradients: Sequence[tf.Tensor], settings: StepSettings) -> int:
    """Updates a group (`Rule.update`)."""
    scaled = [
        _scaled(group.config.trust_coefficient, variable, gradient, settings)
        if decays
        else gradient
        for variable, gradient, decays in zip(
            group.variables, gradients, group.decays, strict=True
        )
    ]
    return momentum.update(group, scaled, settings._replace(weight_decay=0.0))


def _scaled(
    coefficient: float,
    variable: tf.Variable,
    gradient: tf.Tensor,
    settings: StepSettings,
) -> tf.Tensor:
    """Returns the gradient with its weight decay, times the trust."""
    weight_decay = settings.weight_decay
    weight_norm, gradient_norm = norms.norm(variable), norms.norm(gradient)
    trust = tf.where(
        (weight_norm > 0) & (gradient_norm > 0),
        coefficient * weight_norm / (gradient_norm + weight_decay * weight_norm),
        1.0,
    )
    return trust * (gradient + weight_decay * variable)


def _decays(name: str, shape: Sequence[int]) -> bool:
    del shape
    return not name.endswith(("/bias", "/gamma", "/beta"))


RULE = Rule(update, velocities, decays=_decays)
