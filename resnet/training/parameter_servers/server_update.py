"""The update of one parameter server by the gradients of one closure, applied once."""

from collections.abc import Sequence

import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
from resnet.models.layers.moving_averages import Statistic
from resnet.training.parameter_servers.server_variables import MOST_APART, Server

ALREADY_APPLIED = -1


def num_updates(server: Server) -> tf.Tensor:
    """Returns the number of updates so far, an int64 scalar."""
    return tf.gather(server.applied, 0)


def apply(
    server: Server,
    gradients: Sequence[tf.Tensor],
    statistics: Sequence[Statistic],
    number: tf.Tensor,
    read_at: tf.Tensor,
    settings: StepSettings,
    nesterov: bool,
    inverse_staleness: bool,
) -> tf.Tensor:
    """Updates the variables of a server; to be called inside the graph of a closure.

    The weights move as by `Momentum`, and the averages of batch normalization as
    `moving_averages` says. An update of a closure that was applied before is ignored.

    Args:
        server: The server.
        gradients: The gradients, one for each of its weights.
        statistics: The statistics of the batch, one for each of its averages.
        number: The number of the closure, an int64 scalar.
        read_at: The `num_updates` of the server before its weights were read.
        settings: The hyperparameters of the step.
        nesterov: Whether the momentum is Nesterov's.
        inverse_staleness: Whether the learning rate is divided by the staleness where
            that is above 1.

    Returns:
        The staleness, an int64 scalar, or `ALREADY_APPLIED`.

    Source: Zhang et al. 2016, arXiv:1511.05950, for the staleness-aware rate.
    """
    library = native.ops()
    if library is None:
        return apply_with_stock_ops(
            *(server, gradients, statistics, number, read_at),
            *(settings, nesterov, inverse_staleness),
        )
    with tf.device(server.device):
        return library.resnet_server_update(
            variables=[variable.handle for variable in server.weights],
            velocities=[velocity.handle for velocity in server.velocities],
            gradients=gradients,
            averages=[average.handle for average in server.averages],
            statistics=[statistic.value for statistic in statistics],
            applied=server.applied.handle,
            number=number,
            read_at=read_at,
            learning_rate=settings.learning_rate,
            momentum=settings.velocity_factor,
            nesterov_momentum=settings.nesterov_momentum,
            nesterov=nesterov,
            inverse_staleness=inverse_staleness,
            average_step=statistics[0].step_size if statistics else 0.0,
            weight_decays=[settings.weight_decay * decays for decays in server.decays],
        )


def apply_with_stock_ops(
    server: Server,
    gradients: Sequence[tf.Tensor],
    statistics: Sequence[Statistic],
    number: tf.Tensor,
    read_at: tf.Tensor,
    settings: StepSettings,
    nesterov: bool,
    inverse_staleness: bool,
) -> tf.Tensor:
    """Does what `apply` does, with TensorFlow's own ops.

    Each variable is updated by ops that add to it, so that no gradient is lost. But
    updates of several closures can mix, and of two executions of a closure at the same
    time both could be applied.
    """
    rate, velocity_factor, nesterov_momentum, weight_decay = settings[:4]
    with tf.device(server.device):
        # All that is sent has arrived before anything is applied.
        gradients = [tf.identity(gradient) for gradient in gradients]
        values = [tf.identity(statistic.value) for statistic in statistics]
        with tf.control_dependencies([*gradients, *values]):
            count = num_updates(server)
            slot = 1 + number % MOST_APART
            is_first = tf.not_equal(tf.gather(server.applied, slot), number + 1)
        staleness = count - read_at
        if inverse_staleness:
            rate = rate / tf.cast(tf.maximum(staleness, 1), tf.float32)

        def update() -> tf.Tensor:
            ops = [
                server.applied.scatter_update(tf.IndexedSlices(number + 1, slot)),
                server.applied.scatter_add(tf.IndexedSlices(tf.ones_like(slot), 0)),
            ]
            for weight, velocity, gradient, decays in zip(
                *(server.weights, server.velocities, gradients, server.decays),
                strict=True,
            ):
                if decays and weight_decay:
                    gradient = gradient + weight_decay * weight
                # velocity = velocity_factor * velocity + gradient, and the weight moves
                # by the new velocity, in one locked op: read afterwards, the velocity
                # could be that of another update.
                ops.append(
                    tf.raw_ops.ResourceApplyMomentum(
                        var=weight.handle,
                        accum=velocity.handle,
                        lr=rate * nesterov_momentum if nesterov else rate,
                        grad=gradient,
                        momentum=velocity_factor,
                        use_locking=True,
                    )
                )
                if nesterov:
                    ops.append(weight.assign_sub(rate * gradient, read_value=False))
            for average, value, statistic in zip(
                server.averages, values, statistics, strict=True
            ):
                change = (average - value) * statistic.step_size
                ops.append(average.assign_sub(change, read_value=False))
            with tf.control_dependencies(ops):
                return tf.identity(staleness)

        return tf.cond(is_first, update, lambda: tf.constant(ALREADY_APPLIED, tf.int64))
