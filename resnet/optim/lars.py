"""LARS: momentum with a learning rate for each layer, relative to its weights.

trust = coefficient * |variable| / (|gradient| + decay * |variable|)
velocity = momentum * velocity + trust * (gradient + decay * variable)
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
from resnet.optim.groups import Group, Rule


def update(group: Group, gradients: Sequence[tf.Tensor], settings: StepSettings) -> int:
    """Updates a group (`Rule.update`)."""
    scaled, decay = list(gradients), settings.decay
    for number, (variable, gradient, decays) in enumerate(
        zip(group.variables, gradients, group.decays, strict=True)
    ):
        if not decays:
            continue
        weight_norm, gradient_norm = norms.norm(variable), norms.norm(gradient)
        scaled_norm = group.config.trust_coefficient * weight_norm
        trust = tf.where(
            (weight_norm > 0) & (gradient_norm > 0),
            scaled_norm / (gradient_norm + decay * weight_norm),
            1.0,
        )
        scaled[number] = trust * (gradient + decay * variable)
    return momentum.update(group, scaled, settings._replace(decay=0.0))


RULE = Rule(
    update, decays=lambda name, _: not name.endswith(("/bias", "/gamma", "/beta"))
)
