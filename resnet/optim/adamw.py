"""AdamW: updates divided by the size of a variable's recent gradients.

velocity = momentum * velocity + (1 - momentum) * gradient
square = beta2 * square + (1 - beta2) * gradient^2
mean = velocity / bias_correction1                                      (plain)
mean = (momentum * velocity + (1 - momentum) * gradient)
    / (momentum * bias_correction1 + 1 - momentum)                      (Nesterov)
variable = (1 - learning_rate * decay) * variable
    - learning_rate * mean / (sqrt(square / bias_correction2) + epsilon)

where the bias corrections are what the first two lines make of gradients of 1. With a
constant momentum, that of the phase, they are 1 - momentum^t and 1 - beta2^t after t
steps; they differ where variables had a learning rate of 0. With Nesterov's update it
is NAdam without a schedule of the momentum.

Sources: Kingma and Ba 2014, arXiv:1412.6980, algorithm 1; Loshchilov and Hutter 2017,
arXiv:1711.05101, algorithm 2; Dozat 2016, "Incorporating Nesterov Momentum into Adam".
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from resnet.config.phases import StepSettings
from resnet.optim.groups import Group, Rule, slots_like

# Both bias corrections of each variable, `[num_variables, 2]`.
_BIAS_CORRECTIONS = "adam/bias_corrections"


def update(group: Group, gradients: Sequence[tf.Tensor], settings: StepSettings) -> int:
    """Updates a group (`Rule.update`)."""
    beta1, beta2 = settings.nesterov_momentum, group.config.adam_beta2
    decays = tf.stack([beta1, beta2])
    old = group.slots[_BIAS_CORRECTIONS]
    moves = np.zeros((old.shape[0], 1), bool)
    moves[group.places] = True
    corrections = old.assign(tf.where(moves, decays * old + (1 - decays), old))
    rate = settings.learning_rate * group.rate_factor
    for place, variable, velocity, square, gradient, has_decay in zip(
        group.places,
        group.variables,
        group.slot("velocity"),
        group.slot("square"),
        gradients,
        group.decays,
        strict=True,
    ):
        correction1, correction2 = tf.unstack(corrections[place])
        mean = velocity.assign(beta1 * velocity + (1 - beta1) * gradient)
        mean_square = square.assign(beta2 * square + (1 - beta2) * tf.square(gradient))
        if group.config.nesterov:
            mean = beta1 * mean + (1 - beta1) * gradient
            correction1 = beta1 * correction1 + (1 - beta1)
        size = tf.sqrt(mean_square / correction2) + group.config.adam_epsilon
        change = (rate / correction1) * mean / size
        kept = 1 - rate * settings.decay if has_decay else 1.0
        variable.assign(kept * variable - change)
    return 0


def _make_slots(variables: Mapping[str, tf.Variable]) -> dict[str, tf.Variable]:
    return {
        **slots_like(variables, "velocity", "square"),
        _BIAS_CORRECTIONS: tf.Variable(tf.zeros([len(variables), 2])),
    }


RULE = Rule(update, _make_slots)
