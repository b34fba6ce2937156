"""Weights that those of training return to: Lookahead, and outer momentum.

Outer momentum acts on the averages of local SGD: SlowMo, and DiLoCo's with Nesterov.
"""

from collections.abc import Collection, Sequence

import tensorflow as tf

from resnet.config.config import Config
from resnet.config.phases import Phase


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


class OuterMomentum:
    """Momentum whose gradient is the change of the mean weights in a round.

    gradient = (start - mean) / learning_rate
    velocity = outer_momentum * velocity + gradient
    weights = start - outer_learning_rate * learning_rate * velocity         (plain)
    weights = start - outer_learning_rate * learning_rate
                      * (gradient + outer_momentum * velocity)            (Nesterov)

    where `start` are the weights that the round began with and `mean` is the mean over
    ranks of those that it ended with. All of it is the same on all ranks.

    Attributes:
        starts: The weights that the present round began with.
        velocities: The velocity of each variable, float32, zeros at first; none if no
            phase has an outer momentum.

    Sources: Wang et al. 2019, arXiv:1910.00643, algorithm 1 (SlowMo), and its program
    in facebookresearch/fairscale, which also takes the learning rate of the last step
    of the round; Douillard et al. 2023, arXiv:2311.08105 (DiLoCo, with Nesterov's
    momentum of 0.9 and an outer learning rate of 0.7; there the velocity contains the
    learning rate, which is the same unless the rate changes).
    """

    def __init__(
        self, variables: Sequence[tf.Variable], has_velocities: bool = True
    ) -> None:
        self._variables = list(variables)
        self.starts = [tf.Variable(variable) for variable in variables]
        moved = self._variables if has_velocities else []
        self.velocities = [tf.Variable(tf.zeros_like(variable)) for variable in moved]

    def begin(self, is_reset: bool) -> None:
        """Begins a round with the present weights, and perhaps velocities of zero."""
        for start, variable in zip(self.starts, self._variables, strict=True):
            start.assign(variable)
        if is_reset:
            for velocity in self.velocities:
                velocity.assign(tf.zeros_like(velocity))

    def apply(
        self,
        means: Sequence[tf.Tensor],
        phase: Phase,
        learning_rate: tf.Tensor,
        frozen: Collection[int] = (),
    ) -> list[tf.Tensor]:
        """Returns the weights that the next round begins with; for use in the graph.

        `means` are the means over ranks of the weights that the round has ended with,
        and the learning rate is that of its last step: if it is 0, they are the result,
        and the velocities stay, as in a phase without outer momentum. Variables of the
        numbers in `frozen` and their velocities stay as they are.
        """
        factor = phase.outer_learning_rate * learning_rate
        weights = []
        for number, (start, mean) in enumerate(zip(self.starts, means, strict=True)):
            if number in frozen:
                weights.append(start.read_value())
                continue
            weight = mean
            if phase.outer_momentum:
                velocity = self.velocities[number]
                gradient = tf.math.divide_no_nan(start - mean, learning_rate)
                moved = phase.outer_momentum * velocity + gradient
                new = velocity.assign(tf.where(learning_rate > 0, moved, velocity))
                if phase.outer_nesterov:
                    new = gradient + phase.outer_momentum * new
                weight = tf.where(learning_rate > 0, start - factor * new, mean)
            weights.append(weight)
            start.assign(weight)
        return weights
