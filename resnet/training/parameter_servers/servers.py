"""The variables of a run on its parameter servers, and their updates."""

import itertools
from collections.abc import Iterable, Sequence

import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
from resnet.config.recipe import TrainingSettings
from resnet.models.layers.normalization import Statistic
from resnet.optim.groups import balanced
from resnet.optim.train_state import TrainState

# The farthest that closures may be apart while the older one is not done, above which
# a closure that is executed again could not be told from a new one. Half a megabyte.
MOST_APART = 2**16
ALREADY_APPLIED = -1  # The staleness of an update that was applied before.


class Server:
    """The variables on one parameter server.

    Attributes:
        indices, average_indices: The indices of its trainable variables, and of its
            averages, in the order of the network's that are trained, and that are not.
        weights, velocities, averages: The trainable variables, their velocities, and
            the averages of batch normalization.
        decays: Whether weight decay applies to each of `weights`.
        pairs: Each variable of the state on the coordinator with that of the server,
            first those of `weights`.
        applied: int64 `[1 + MOST_APART]`: the number of updates; then the numbers of
            the last closures plus 1, each at 1 + number % MOST_APART.
    """

    def __init__(self, index: int, state: TrainState, indices: Sequence[int]) -> None:
        """Creates the variables with the values of the state on the coordinator.

        Their indices are in the order of the network's, the trainable ones first.
        """
        self.device = f"/job:ps/replica:0/task:{index}/device:CPU:0"
        num_weights = len(state.trainable_variables)
        self.indices = [index for index in indices if index < num_weights]
        self.average_indices = [
            index - num_weights for index in indices if index >= num_weights
        ]
        self.decays = [state.optimizer.decays[index] for index in self.indices]
        velocities = list(state.optimizer.velocities.values())
        averages = _averages(state)
        of_state = [
            [state.trainable_variables[index] for index in self.indices],
            [velocities[index] for index in self.indices],
            [averages[index] for index in self.average_indices],
        ]
        with tf.device(self.device):
            copies = [
                [tf.Variable(ours.numpy(), trainable=False) for ours in variables]
                for variables in of_state
            ]
            self.applied = tf.Variable(tf.zeros([1 + MOST_APART], tf.int64))
        self.weights, self.velocities, self.averages = copies
        self.pairs = list(
            zip(itertools.chain(*of_state), itertools.chain(*copies), strict=True)
        )


class ServerVariables:
    """The variables of a run on all of its parameter `servers`."""

    def __init__(self, state: TrainState, num_servers: int) -> None:
        """Distributes the variables of the state, about as many bytes to each."""
        sizes = [
            variable.shape.num_elements()
            for variable in [*state.trainable_variables, *_averages(state)]
        ]
        self.servers = [
            Server(index, state, indices)
            for index, indices in enumerate(balanced(sizes, num_servers))
        ]

    def read_weights(self) -> list[tf.Tensor]:
        """Returns the trainable variables, in the order of the network's.

        To be called inside the graph of a closure, which reads each of them once, so
        that all of it has the same weights.
        """
        return _read(
            (server, server.indices, server.weights) for server in self.servers
        )

    def read_averages(self) -> list[tf.Tensor]:
        """Returns the averages of batch normalization, as `read_weights`."""
        return _read(
            (server, server.average_indices, server.averages) for server in self.servers
        )

    def push(self) -> None:
        """Sets the variables of the servers to those of the state."""
        for server in self.servers:
            for ours, theirs in server.pairs:
                theirs.assign(ours)

    def pull(self, only_weights: bool = False) -> None:
        """Sets the variables of the state, or the trainable ones, to the servers'."""
        for server in self.servers:
            count = len(server.weights) if only_weights else None
            for ours, theirs in server.pairs[:count]:
                ours.assign(theirs.read_value())

    def require_updates(self, count: int) -> None:
        """Checks that each server has applied each closure so far, none running.

        Raises:
            RuntimeError: If an update was lost or applied twice.
        """
        for index, server in enumerate(self.servers):
            applied = int(num_updates(server))
            if applied != count:
                raise RuntimeError(
                    f"parameter server {index} must have applied {count} updates,"
                    f" one for each part of a batch; it has applied {applied}"
                )


def _read(
    parts: Iterable[tuple[Server, Sequence[int], Sequence[tf.Variable]]],
) -> list[tf.Tensor]:
    """Returns the values on all servers, in the order of the indices."""
    values: dict[int, tf.Tensor] = {}
    for server, indices, variables in parts:
        with tf.device(server.device):
            for index, variable in zip(indices, variables, strict=True):
                values[index] = variable.read_value()
    return [values[index] for index in sorted(values)]


def _averages(state: TrainState) -> list[tf.Variable]:
    return [variable.value for variable in state.model.non_trainable_variables]


def num_updates(server: Server) -> tf.Tensor:
    """Returns the number of updates so far, an int64 scalar."""
    return tf.gather(server.applied, 0)


def apply_update(
    server: Server,
    gradients: Sequence[tf.Tensor],
    statistics: Sequence[Statistic],
    number: tf.Tensor,
    read_at: tf.Tensor,
    settings: StepSettings,
    config: TrainingSettings,
) -> tf.Tensor:
    """Updates the variables of a server; to be called inside the graph of a closure.

    The weights move as by `momentum`, and the averages of batch normalization towards
    the statistics of the batch. The update of a closure, by its number, an int64
    scalar, that was applied before is ignored. `read_at` is the `num_updates` of the
    server before its weights were read. By `staleness_rate` the learning rate may be
    divided by the staleness where that is above 1. Returned is the staleness, an int64
    scalar, or `ALREADY_APPLIED`.

    Source: Zhang et al. 2016, arXiv:1511.05950, for the staleness-aware rate.
    """
    library = native.ops()
    if library is None:
        return apply_update_with_stock_ops(
            server, gradients, statistics, number, read_at, settings, config
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
            nesterov=config.nesterov,
            inverse_staleness=config.staleness_rate == "inverse",
            average_step=statistics[0].step_size if statistics else 0.0,
            weight_decays=[settings.decay * decays for decays in server.decays],
        )


def apply_update_with_stock_ops(
    server: Server,
    gradients: Sequence[tf.Tensor],
    statistics: Sequence[Statistic],
    number: tf.Tensor,
    read_at: tf.Tensor,
    settings: StepSettings,
    config: TrainingSettings,
) -> tf.Tensor:
    """Does what `apply_update` does, with TensorFlow's own ops.

    Each variable is updated by ops that add to it, so that no gradient is lost. But
    updates of several closures can mix, and of two executions of a closure at the same
    time both could be applied.
    """
    rate, velocity_factor, nesterov_momentum, decay = settings[:4]
    with tf.device(server.device):
        # All that is sent has arrived before anything is applied.
        gradients = [tf.identity(gradient) for gradient in gradients]
        values = [tf.identity(statistic.value) for statistic in statistics]
        with tf.control_dependencies([*gradients, *values]):
            count = num_updates(server)
            slot = 1 + number % MOST_APART
            is_first = tf.not_equal(tf.gather(server.applied, slot), number + 1)
        staleness = count - read_at
        if config.staleness_rate == "inverse":
            rate = rate / tf.cast(tf.maximum(staleness, 1), tf.float32)

        def update() -> tf.Tensor:
            ops = [
                server.applied.scatter_update(tf.IndexedSlices(number + 1, slot)),
                server.applied.scatter_add(tf.IndexedSlices(tf.ones_like(slot), 0)),
            ]
            for weight, velocity, gradient, decays in zip(
                server.weights, server.velocities, gradients, server.decays, strict=True
            ):
                if decays and decay:
                    gradient = gradient + decay * weight
                # velocity = velocity_factor * velocity + gradient, and the weight moves
                # by the new velocity, in one locked op: read afterwards, the velocity
                # could be that of another update.
                ops.append(
                    tf.raw_ops.ResourceApplyMomentum(
                        var=weight.handle,
                        accum=velocity.handle,
                        lr=rate * nesterov_momentum if config.nesterov else rate,
                        grad=gradient,
                        momentum=velocity_factor,
                        use_locking=True,
                    )
                )
                if config.nesterov:
                    ops.append(weight.assign_sub(rate * gradient, read_value=False))
            for average, value, statistic in zip(
                server.averages, values, statistics, strict=True
            ):
                change = (average - value) * statistic.step_size
                ops.append(average.assign_sub(change, read_value=False))
            with tf.control_dependencies(ops):
                return tf.identity(staleness)

        return tf.cond(is_first, update, lambda: tf.constant(ALREADY_APPLIED, tf.int64))
