"""The variables of a run on its parameter servers."""

from collections.abc import Iterable, Sequence

import tensorflow as tf

from resnet.optim.groups import balanced
from resnet.optim.train_state import TrainState

# The farthest that closures may be apart while the older one is not done, above which
# a closure that is executed again could not be told from a new one. Half a megabyte.
MOST_APART = 2**16


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
            index: The number of the server.
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
            num_servers: The number of servers.
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
    """Returns the values of the variables of all servers, in the order of the indices.

    Args:
        parts: Each server with the indices of some of its variables, and these.
    """
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
