"""Deep gradient compression (DGC): topk of accumulated velocities.

With a momentum m, each rank computes of its own gradient g

    u = m u + g
    v = v + u              (plain)        v = v + g + m u         (Nesterov)

and sends the largest values of v. Where a value is sent, u and v become zero. The mean
of what was sent takes the place of the optimizer's velocity. In the first epochs more
values are sent, and a rank clips its gradient to 1 / sqrt(R) of the norm, which the sum
of R independent gradients has on average.

Source: Lin et al. 2018, arXiv:1712.01887, section 3 and appendix B; the authors'
program (synxlin/deep-gradient-compression), whose optimizer, too, gives weight decay a
velocity of its own. There, vectors such as biases are sent whole, as here those with
fewer values than `dense_below`.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from resnet.config import phases
from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.exchange.codecs.codec import Residuals


class Velocities(Residuals):
    """The velocities of a rank, u, and in its residuals what is yet to be sent, v."""

    def __init__(
        self, config: Config, shapes: Mapping[str, Sequence[int]], num_ranks: int
    ) -> None:
        super().__init__(config, shapes, num_ranks)
        self._config = config
        self._largest_norm = config.clip_norm / num_ranks**0.5
        self._velocities = [
            tf.Variable(tf.zeros_like(residual)) for residual in self._residuals
        ]
        for name, velocity in zip(shapes, self._velocities, strict=True):
            self.rank_variables[f"velocity/{name}"] = velocity

    def to_send(
        self, gradients: Sequence[tf.Tensor], step: StepSettings
    ) -> list[tf.Tensor]:
        """Returns what is accumulated, with the gradients."""
        if self._largest_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._largest_norm)
        accumulated = []
        for velocity, residual, gradient in zip(
            self._velocities, self._residuals, self._flat(gradients), strict=True
        ):
            new = velocity.assign(step.velocity_factor * velocity + gradient)
            if self._config.nesterov:
                new = gradient + step.nesterov_momentum * new
            # TensorFlow makes one op (AddN) of a sum of three tensors, which begins
            # with one whose memory it can reuse: its rounding differs from run to run.
            accumulated.append(residual.assign_add(new).read_value())
        return accumulated

    def keep(self, vectors: Sequence[tf.Tensor], left: Sequence[tf.Tensor]) -> None:
        """Keeps what was not sent, and the velocities of these values."""
        super().keep(vectors, left)
        for velocity, vector, rest in zip(self._velocities, vectors, left, strict=True):
            if vector.shape.num_elements() < self._config.dense_below:
                continue  # It is sent in each step, by plain momentum.
            is_sent = rest != vector
            velocity.assign(tf.where(is_sent, tf.zeros_like(velocity), velocity))

    def ratio_at(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the fraction of the values to send in a step, a float64 scalar.

        It is ratio^((e + 1) / (E + 1)) in epoch e of E epochs of warm-up, counted from
        0 at the start of the run, and `ratio` after these: for 0.1 % and 4 epochs 25 %,
        6.3 %, 1.6 % and 0.4 %.

        Source: Lin et al. 2018, arXiv:1712.01887, section 3.3.
        """
        config = self._config
        steps = step - phases.first_step(config.phases, config.first_phase)
        steps_per_epoch = config.num_train_examples / config.global_batch_size
        epoch = tf.floor(tf.cast(steps, tf.float64) / steps_per_epoch)
        exponent = tf.minimum((epoch + 1) / (config.dgc_warmup_epochs + 1), 1.0)
        return tf.pow(tf.constant(config.ratio, tf.float64), exponent)
