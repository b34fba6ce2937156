"""Groups of variables that one rule updates, and what a rule of an optimizer is."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from resnet.config.phases import StepSettings
from resnet.config.recipe import TrainingSettings
from resnet.distributed.collectives import Collectives


class Group(NamedTuple):
    """Trainable variables that one rule updates with one factor of the learning rate.

    Attributes:
        places: Their places among all variables of the optimizer.
        decays: Whether weight decay applies to each.
        rate_factor: The factor of the learning rate, more than 0.
        slots: The state of the whole optimizer, by its stored names.
        config: The settings of the run, which have the constants of the rules.
        dtype: The dtype that the network computes in, which a rule may do, too.
        collectives: The ranks that have the same state, among which work may be
            divided; None where no other rank has it.
    """

    places: list[int]
    names: list[str]
    variables: list[tf.Variable]
    decays: list[bool]
    rate_factor: float
    slots: Mapping[str, tf.Variable]
    config: TrainingSettings
    dtype: tf.DType
    collectives: Collectives | None

    def slot(self, kind: str) -> list[tf.Variable]:
        """Returns the slot of each variable of a kind that `slots_like` has made."""
        return [self.slots[f"{kind}/{name}"] for name in self.names]


def slots_like(
    variables: Mapping[str, tf.Variable], *kinds: str
) -> dict[str, tf.Variable]:
    """Returns slots of zeros in the shapes of variables, as `kind/name`."""
    return {
        f"{kind}/{name}": tf.Variable(tf.zeros_like(variable))
        for kind in kinds
        for name, variable in variables.items()
    }


def descend(variable: tf.Variable, rate: tf.Tensor, direction: tf.Tensor) -> None:
    """Subtracts `rate * direction` from a variable, in one pass over memory.

    To be called inside the graph. All are float32, and the rate is a scalar.
    """
    tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.handle, alpha=rate, delta=direction
    )


class Rule(NamedTuple):
    """How an optimizer updates variables.

    Attributes:
        update: Updates the variables of a group inside the graph of a step, by their
            mean gradients over the global batch; returns the bytes that this rank sends
            to others for it.
        make_slots: Returns the state for variables by their names, as it is before the
            first step: zeros, by stored names; by default, velocities.
        takes: Whether the rule is for a variable of a shape; others are updated by
            momentum.
        decays: Whether weight decay applies to a variable with a name and shape.
    """

    update: Callable[[Group, Sequence[tf.Tensor], StepSettings], int]
    make_slots: Callable[[Mapping[str, tf.Variable]], dict[str, tf.Variable]] = (
        lambda variables: slots_like(variables, "velocity")
    )
    takes: Callable[[Sequence[int]], bool] = lambda shape: True
    decays: Callable[[str, Sequence[int]], bool] = lambda name, shape: True


def balanced(costs: Sequence[float], num_parts: int) -> list[list[int]]:
    """Returns the indices of some costs in parts, whose sums are about equal.

    The largest cost goes first, each to the part with the smallest sum so far. The
    largest sum is at most 4/3 of the least that is possible.

    Source: Graham 1969, "Bounds on multiprocessing timing anomalies", theorem 3.
    """
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    sums = [0.0] * num_parts
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        part = sums.index(min(sums))
        parts[part].append(index)
        sums[part] += costs[index]
    return [sorted(part) for part in parts]
