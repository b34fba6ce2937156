"""Lookahead: slow weights that the weights of training return to every few steps."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.config.config import Config


class Lookahead:
    """Slow copies of variables, and their exchange with the variables.

    After every `lookahead_every` steps

        slow = decay * slow + (1 - decay) * variable
        variable = slow

    with decay = `lookahead_decay` * (steps done / steps of the run) ** `power`. After
    the last step of the run, the variables become the slow copies as they are. That
    holds also for the averages of batch normalization in phases that freeze it.

    `slow` has the slow copy of each variable.

    Source: Zhang et al. 2019, arXiv:1907.08610, whose alpha is 1 - decay; the decay
    that grows, and the same for the averages of batch normalization: Jordan 2024,
    arXiv:2404.00498 (KellerJordan/cifar10-airbench, legacy/airbench94.py,
    LookaheadState).
    """

    def __init__(self, variables: Sequence[tf.Variable], config: Config) -> None:
        self.slow = [tf.Variable(variable) for variable in variables]
        self._variables = list(variables)
        self._config = config
        self._exchange = tf.function(self._exchange_in_graph, autograph=False)

    def begin(self) -> None:
        """Sets the slow copies to the present weights."""
        for slow, variable in zip(self.slow, self._variables, strict=True):
            slow.assign(variable)

    def after_step(self, num_steps: int) -> None:
        """Does what is due when `num_steps` steps of the run are done."""
        config = self._config
        if num_steps % config.lookahead_every == 0:
            fraction = float((num_steps / config.train_steps) ** config.lookahead_power)
            self._exchange(tf.constant(config.lookahead_decay * fraction, tf.float32))
        if num_steps == config.train_steps:
            self._exchange(tf.constant(1.0))

    def _exchange_in_graph(self, decay: tf.Tensor) -> None:
        for slow, variable in zip(self.slow, self._variables, strict=True):
            variable.assign(slow.assign_sub((1 - decay) * (slow - variable)))
