"""The variables of a parameter server in this process."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from resnet.training.parameter_servers.servers import MOST_APART


def make_server(
    weights: list[Any], averages: list[Any] = (), decays: list[bool] | None = None
) -> Any:
    """Returns what a `Server` has, in this process; its velocities are 0."""
    return SimpleNamespace(
        device="/cpu:0",
        weights=[tf.Variable(one, dtype=tf.float32) for one in weights],
        velocities=[tf.Variable(tf.zeros(np.shape(one))) for one in weights],
        averages=[tf.Variable(one, dtype=tf.float32) for one in averages],
        decays=[True] * len(weights) if decays is None else decays,
        applied=tf.Variable(tf.zeros([1 + MOST_APART], tf.int64)),
    )


def values(server: Any) -> list[np.ndarray]:
    """Returns copies of everything on a server."""
    variables = [*server.weights, *server.velocities, *server.averages, server.applied]
    return [np.array(one.numpy()) for one in variables]


def assert_unchanged(server: Any, before: list[np.ndarray]) -> None:
    for ours, expected in zip(values(server), before, strict=True):
        np.testing.assert_array_equal(ours, expected)
