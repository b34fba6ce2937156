"""Momentum over the averages of local SGD: SlowMo, and DiLoCo's with Nesterov."""

from collections.abc import Collection, Sequence

import tensorflow as tf

from resnet.config.phases import Phase


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
        velocities: The velocity of each variable, float32, zeros at first.

    Sources: Wang et al. 2019, arXiv:1910.00643, algorithm 1 (SlowMo), and its program
    in facebookresearch/fairscale, which also takes the learning rate of the last step
    of the round; Douillard et al. 2023, arXiv:2311.08105 (DiLoCo, with Nesterov's
    momentum of 0.9 and an outer learning rate of 0.7; there the velocity contains the
    learning rate, which is the same unless the rate changes).
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = list(variables)
        self.starts = [tf.Variable(variable) for variable in variables]
        self.velocities = [
            tf.Variable(tf.zeros_like(variable)) for variable in variables
        ]

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
        and the velocities stay. Variables of the numbers in `frozen` and their
        velocities stay as they are.
        """
        factor = phase.outer_learning_rate * learning_rate
        weights = []
        for number, (start, velocity, mean) in enumerate(
            zip(self.starts, self.velocities, means, strict=True)
        ):
            if number in frozen:
                weights.append(start.read_value())
                continue
            gradient = tf.math.divide_no_nan(start - mean, learning_rate)
            moved = phase.outer_momentum * velocity + gradient
            new = velocity.assign(tf.where(learning_rate > 0, moved, velocity))
            if phase.outer_nesterov:
                new = gradient + phase.outer_momentum * new
            weights.append(tf.where(learning_rate > 0, start - factor * new, mean))
            start.assign(weights[-1])
        return weights
