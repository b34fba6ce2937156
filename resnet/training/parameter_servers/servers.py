"""The variables of a run on its parameter servers, and their updates."""

from collections.abc import Iterable, Sequence

import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
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
        device: Its name.
        indices: The indices of its trainable variables in the order of the network's.
        average_indices: The indices of its averages in the order of the network's
            variables that are not trained.
        weights: The trainable variables.
        velocities: Their velocities.
        averages: The averages of batch normalization.
        decays: Whether weight decay applies to each of `weights`.
        applied: int64 `[1 + MOST_APART]`: the number of updates; then the numbers of
            the last closures plus 1, each at 1 + number % MOST_APART.
    """

    def __init__(self, index: int, state: TrainState, indices: Sequence[int]) -> None:
        """Creates the variables with the values of the state.

        Args:
            state: The state of the run, on the coordinator.
            indices: The indices of its variables in the order of the network's, first
                the trainable ones, then the others.
        """
        self.device = f"/job:ps/replica:0/task:{index}/device:CPU:0"
        num_weights = len(state.trainable_variables)
        self.indices = [index for index in indices if index < num_weights]
        self.average_indices = [
            index - num_weights for index in indices if index >= num_weights
        ]
        self.decays = [state.optimizer.decays[index] for index in self.indices]
        with tf.device(self.device):
            self.weights = _copies(state.trainable_variables, self.indices)
            self.velocities = _copies(
                list(state.optimizer.velocities.values()), self.indices
            )
            self.averages = _copies(_averages(state), self.average_indices)
            self.applied = tf.Variable(tf.zeros([1 + MOST_APART], tf.int64))


class ServerVariables:
    """The variables of a run on all of its parameter servers.

    Attributes:
        servers: The servers, in their order.
    """

    def __init__(self, state: TrainState, num_servers: int) -> None:
        """Distributes the variables over the servers, about as many bytes to each.

        Args:
            state: The state of the run, on the coordinator, whose values they get.
        """
        self._state = state
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
        return _read((one, one.indices, one.weights) for one in self.servers)

    def read_averages(self) -> list[tf.Tensor]:
        """Returns the averages of batch normalization, as `read_weights`."""
        return _read((one, one.average_indices, one.averages) for one in self.servers)

    def push(self) -> None:
        """Sets the variables of the servers to those of the state."""
        for ours, theirs in self._pairs():
            theirs.assign(ours)

    def pull(self) -> None:
        """Sets the variables of the state to those of the servers."""
        for ours, theirs in self._pairs():
            ours.assign(theirs.read_value())

    def require_updates(self, num_updates: int) -> None:
        """Checks that each server has applied each closure once, none of them running.

        Args:
            num_updates: The number of closures since the variables were created.

        Raises:
            RuntimeError: If an update was lost or applied twice.
        """
        for index, server in enumerate(self.servers):
            applied = int(tf.gather(server.applied, 0))
            if applied != num_updates:
                raise RuntimeError(
                    f"parameter server {index} must have applied {num_updates} updates,"
                    f" one for each part of a batch; it has applied {applied}"
                )

    def pull_weights(self) -> None:
        """Sets only the trainable variables of the state to those of the servers."""
        for server in self.servers:
            for index, weight in zip(server.indices, server.weights, strict=True):
                self._state.trainable_variables[index].assign(weight.read_value())

    def _pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        state = self._state
        pairs: list[tuple[tf.Variable, tf.Variable]] = []
        for server in self.servers:
            for all_ours, indices, theirs in (
                (state.trainable_variables, server.indices, server.weights),
                (
                    list(state.optimizer.velocities.values()),
                    server.indices,
                    server.velocities,
                ),
                (_averages(state), server.average_indices, server.averages),
            ):
                pairs += zip(
                    (all_ours[index] for index in indices), theirs, strict=True
                )
        return pairs


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


def _copies(
    variables: Sequence[tf.Variable], indices: Sequence[int]
) -> list[tf.Variable]:
    return [tf.Variable(variables[index].numpy(), trainable=False) for index in indices]


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
    nesterov: bool,
    inverse_staleness: bool,
) -> tf.Tensor:
    """Updates the variables of a server; to be called inside the graph of a closure.

    The weights move as by `Momentum`, and the averages of batch normalization as
    `moving_averages` says. An update of a closure that was applied before is ignored.

    Args:
        gradients: The gradients, one for each of its weights.
        statistics: The statistics of the batch, one for each of its averages.
        number: The number of the closure, an int64 scalar.
        read_at: The `num_updates` of the server before its weights were read.
        nesterov: Whether the momentum is Nesterov's.
        inverse_staleness: Whether the learning rate is divided by the staleness where
            that is above 1.

    Returns:
        The staleness, an int64 scalar, or `ALREADY_APPLIED`.

    Source: Zhang et al. 2016, arXiv:1511.05950, for the staleness-aware rate.
    """
    library = native.ops()
    if library is None:
        return apply_update_with_stock_ops(
            server,
            gradients,
            statistics,
            number,
            read_at,
            settings,
            nesterov,
            inverse_staleness,
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


def apply_update_with_stock_ops(
    server: Server,
    gradients: Sequence[tf.Tensor],
    statistics: Sequence[Statistic],
    number: tf.Tensor,
    read_at: tf.Tensor,
    settings: StepSettings,
    nesterov: bool,
    inverse_staleness: bool,
) -> tf.Tensor:
    """Does what `apply_update` does, with TensorFlow's own ops.

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
                server.weights,
                server.velocities,
                gradients,
                server.decays,
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
