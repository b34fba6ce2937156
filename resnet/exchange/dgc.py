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
from resnet.config.step_settings import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.compressed import CompressedExchange


class DgcExchange(CompressedExchange):
    """Averages the largest values of the ranks' accumulated velocities."""

    has_momentum = True

    def __init__(
        self,
        communicator: Communicator,
        shapes: Mapping[str, Sequence[int]],
        config: Config,
    ) -> None:
        """Prepares the exchange.

        Args:
            communicator: The ranks.
            shapes: Shape of each variable by its name, the same on all ranks.
            config: The settings of the run, whose method is "dgc".
        """
        super().__init__(communicator, shapes, config, config.seed)
        self._config = config
        self._largest_norm = config.clip_norm / communicator.num_ranks**0.5
        self._velocities = {
            name: tf.Variable(tf.zeros_like(residual))
            for name, residual in self._residuals.items()
        }
        velocities = self._velocities.items()
        self.rank_variables |= {f"velocity/{name}": one for name, one in velocities}

    def reset_momentum(self) -> None:
        """Sets the velocities to zero, and keeps what is yet to be sent."""
        for velocity in self._velocities.values():
            velocity.assign(tf.zeros_like(velocity))

    def _to_send(
        self, gradients: Sequence[tf.Tensor], settings: StepSettings
    ) -> list[tf.Tensor]:
        if self._largest_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._largest_norm)
        accumulated = []
        for (name, velocity), gradient in zip(
            self._velocities.items(), self._as_vectors(gradients), strict=True
        ):
            new = velocity.assign(settings.velocity_factor * velocity + gradient)
            if self._config.nesterov:
                new = gradient + settings.nesterov_momentum * new
            # TensorFlow makes one op (AddN) of a sum of three tensors, which begins
            # with one whose memory it can reuse: its rounding differs from run to run.
            accumulated.append(self._residuals[name].assign_add(new).read_value())
        return accumulated

    def _keep(self, flat: Sequence[tf.Tensor], left: Sequence[tf.Tensor]) -> None:
        for name, vector, rest in zip(self._velocities, flat, left, strict=True):
            self._residuals[name].assign(rest)
            if vector.shape.num_elements() < self._config.dense_below:
                continue  # It is sent in each step, by plain momentum.
            velocity, is_sent = self._velocities[name], rest != vector
            velocity.assign(tf.where(is_sent, tf.zeros_like(velocity), velocity))

    def _ratio_at(self, step: tf.Tensor) -> tf.Tensor:
        config = self._config
        return ratio_at(
            step - phases.first_step(config.phases, config.first_phase),
            self._config.ratio,
            self._config.num_train_examples / self._config.global_batch_size,
            self._config.dgc_warmup_epochs,
        )


def ratio_at(
    step: tf.Tensor, ratio: float, steps_per_epoch: float, warmup_epochs: int
) -> tf.Tensor:
    """Returns the fraction of the values to send in a step, a float64 scalar.

    It is ratio^((e + 1) / (E + 1)) in epoch e of E epochs of warm-up, counted from 0,
    and `ratio` after these: for 0.1 % and 4 epochs 25 %, 6.3 %, 1.6 % and 0.4 %.

    Args:
        step: Number of steps since the start of the run, an int64 scalar.
        ratio: Fraction of the values to send after the warm-up.
        steps_per_epoch: Number of steps of an epoch.
        warmup_epochs: Number of epochs E of the warm-up.

    Source: Lin et al. 2018, arXiv:1712.01887, section 3.3.
    """
    epoch = tf.floor(tf.cast(step, tf.float64) / steps_per_epoch)
    exponent = tf.minimum((epoch + 1) / (warmup_epochs + 1), 1.0)
    return tf.pow(tf.constant(ratio, tf.float64), exponent)
