"""What the op of a parameter server refuses, before it changes anything."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.training.parameter_servers.servers import num_updates
from tests.unit.small_server import assert_unchanged, make_server, values

REFUSED = (tf.errors.InvalidArgumentError, ValueError)


def call_op(server: Any, **changed: Any) -> None:
    arguments = {
        "variables": [one.handle for one in server.weights],
        "velocities": [one.handle for one in server.velocities],
        "gradients": [tf.ones([3]), tf.ones([2])],
        "averages": [one.handle for one in server.averages],
        "statistics": [tf.zeros([4])],
        "applied": server.applied.handle,
        "number": tf.constant(5, tf.int64),
        "read_at": tf.constant(0, tf.int64),
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov_momentum": 0.9,
        "nesterov": False,
        "inverse_staleness": False,
        "average_step": 0.1,
        "weight_decays": [0.0, 0.0],
    }
    native.ops().resnet_server_update(**{**arguments, **changed})


def op_server() -> Any:
    return make_server([np.ones(3), np.ones(2)], [np.ones(4)])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gradients": [tf.ones([3]), tf.ones([3])]}, "variable 1 has the shape"),
        ({"statistics": [tf.ones([5])]}, "variable 0 has the shape"),
        ({"weight_decays": [0.0]}, "one value for each of 2 variables; got 1"),
        ({"weight_decays": []}, "one value for each of 2 variables; got 0"),
        ({"number": tf.constant([5, 6], tf.int64)}, r"must be scalars; got \[2\]"),
        ({"read_at": tf.constant([0], tf.int64)}, r"must be scalars; got \[1\]"),
        ({"learning_rate": [0.1, 0.1]}, r"must be scalars; got \[2\]"),
        ({"momentum": [0.1, 0.1]}, r"must be scalars; got \[2\]"),
        ({"nesterov_momentum": [0.1, 0.1]}, r"must be scalars; got \[2\]"),
        ({"number": tf.constant(-1, tf.int64)}, "number at least 0"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(changed, words):
    server = op_server()
    before = values(server)
    with pytest.raises(REFUSED, match=words):
        call_op(server, **changed)
    assert_unchanged(server, before)
    call_op(server)  # No lock is held any longer.
    assert num_updates(server) == 1


@pytest.mark.parametrize("which", ["variables", "velocities", "averages"])
def test_variables_of_another_type_or_shape_are_refused(which):
    name = "weights" if which == "variables" else which
    for wrong, words in (
        (tf.ones([4, 1]), "has the shape"),
        (None, "must be float32; it is bfloat16"),
    ):
        server = op_server()
        variables = getattr(server, name)
        if wrong is None:
            wrong = tf.ones(variables[0].shape, tf.bfloat16)
        variables[0] = tf.Variable(wrong)
        before = values(server)
        with pytest.raises(REFUSED, match=words):
            call_op(server)
        assert_unchanged(server, before)


@pytest.mark.parametrize(
    "wrong",
    [tf.zeros([9]), tf.zeros([3, 3], tf.int64), tf.zeros([1], tf.int64)],
)
def test_a_log_of_closures_that_is_no_vector_of_numbers_is_refused(wrong):
    server = op_server()
    server.applied = tf.Variable(wrong)
    before = values(server)
    with pytest.raises(REFUSED, match="applied must be a vector of at least 2 int64"):
        call_op(server)
    assert_unchanged(server, before)


def test_handles_must_be_scalars():
    server = op_server()
    handles = tf.stack([server.applied.handle])
    with pytest.raises(REFUSED, match=r"must be scalars; got \[1\]"):
        call_op(server, applied=handles)
    stacked = [tf.stack([one.handle]) for one in server.weights]
    with pytest.raises(REFUSED, match="handle of a variable must be a scalar"):
        call_op(server, variables=stacked)
    assert num_updates(server) == 0
