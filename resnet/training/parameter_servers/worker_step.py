"""What a worker does for one closure: read a part of a batch, compute, update."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from resnet.config import phases
from resnet.config.phases import Phase
from resnet.data.input_pipeline import Batch, Reading, ToRead, read_batch
from resnet.models.layers import dropout, normalization
from resnet.optim.train_state import TrainState
from resnet.training.parameter_servers import servers
from resnet.training.parameter_servers.servers import ServerVariables
from resnet.training.train_step import mean_loss


class Done(NamedTuple):
    """The result of a closure.

    The loss is the mean cross-entropy of the examples, NaN if the gradients are not
    finite; the staleness is the number of updates between reading and update, on the
    first server, below 0 if the closure was applied before. Of the seconds on the
    worker, it read its examples for `reading_seconds`.
    """

    loss: tf.Tensor
    staleness: tf.Tensor
    reading_seconds: tf.Tensor
    seconds: tf.Tensor


def make(
    state: TrainState, variables: ServerVariables, reading: Reading
) -> Callable[..., Done]:
    """Returns the function of the closures of a phase, to be scheduled on workers.

    The phase is that of the state's next step. The arguments of the function are the
    number of the closure (int64), what to read (`ToRead`, a micro-batch of `reading`),
    the key of dropout (int64) and the first three of `StepSettings` (float32 `[3]`).
    """
    config = state.config
    phase = phases.at(config.phases, state.step)
    of_phase = config.settings_at(state.step)

    @tf.function(autograph=False)
    def step(
        number: tf.Tensor, to_read: ToRead, dropout_key: tf.Tensor, changing: tf.Tensor
    ) -> Done:
        began_at = tf.timestamp()
        with tf.control_dependencies([began_at]):
            batch = read_batch(to_read, phase, reading)
        with tf.control_dependencies(list(batch)):
            read_at = tf.timestamp()
            counts = [servers.num_updates(server) for server in variables.servers]
        with tf.control_dependencies(counts):
            values = variables.read_weights()
        loss, gradients, averages = _gradients(phase, state, values, batch, dropout_key)
        is_finite = tf.math.is_finite(tf.reduce_sum(gradients[0]))
        rate, velocity_factor, nesterov_momentum = tf.unstack(changing)
        settings = of_phase._replace(
            learning_rate=rate,
            velocity_factor=velocity_factor,
            nesterov_momentum=nesterov_momentum,
        )
        staleness = [
            servers.apply_update(
                server,
                [gradients[index] for index in server.indices],
                [averages[index] for index in server.average_indices],
                number,
                count,
                settings,
                config,
            )
            for server, count in zip(variables.servers, counts, strict=True)
        ]
        with tf.control_dependencies(staleness):
            ended_at = tf.timestamp()
        return Done(
            tf.where(is_finite, loss, float("nan")),
            tf.identity(staleness[0]),
            read_at - began_at,
            ended_at - began_at,
        )

    return step


def _gradients(
    phase: Phase,
    state: TrainState,
    weights: Sequence[tf.Tensor],
    batch: Batch,
    dropout_key: tf.Tensor,
) -> tuple[tf.Tensor, list[tf.Tensor], list[normalization.Statistic]]:
    """Returns the mean loss of a batch, its gradients, clipped if set, and statistics.

    The last are those of each of the model's moving averages, in their order.
    """
    replaced = zip(state.model.trainable_variables, weights, strict=True)
    with (
        keras.StatelessScope(list(replaced)),
        normalization.collected() as statistics,
        dropout.keyed(dropout_key, batch.examples),
        tf.GradientTape() as tape,
    ):
        tape.watch(weights)
        loss = mean_loss(state.model, batch, phase, state.config.class_weight_values)
    gradients = tape.gradient(loss, weights)
    if clip_norm := state.config.clip_norm:
        gradients, _ = tf.clip_by_global_norm(gradients, clip_norm)
    of_average = {id(statistic.average): statistic for statistic in statistics}
    averages = state.model.non_trainable_variables
    return loss, gradients, [of_average[id(average)] for average in averages]
