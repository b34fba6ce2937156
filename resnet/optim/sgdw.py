"""SGDW: momentum whose weight decay acts on the variables directly.

velocity = momentum * velocity + gradient
variable = (1 - learning_rate * decay) * variable - learning_rate * velocity

and with Nesterov's look-ahead as in `momentum`. So the decay has the schedule of the
learning rate, and no part in the velocity. Composer's DecoupledSGDW has the factor at
the highest learning rate instead: the decay is its factor divided by this rate. One
that is added to the gradient, as in `momentum`, shrinks variables 1 / (1 - momentum)
times as fast.

Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 1; mosaicml/composer,
composer/optim, DecoupledSGDW.
"""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.phases import StepSettings
from resnet.optim import momentum
from resnet.optim.groups import Group, Rule


def update(group: Group, gradients: Sequence[tf.Tensor], settings: StepSettings) -> int:
    """Updates a group (`Rule.update`)."""
    rate = settings.learning_rate * group.rate_factor
    for variable, decays in zip(group.variables, group.decays, strict=True):
        if decays and settings.decay:
            variable.assign((1 - rate * settings.decay) * variable)
    return momentum.update(group, gradients, settings._replace(decay=0.0))


RULE = Rule(update)
