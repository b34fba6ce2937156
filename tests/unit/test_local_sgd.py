"""Local SGD on one rank, and the outer momentum's formulas."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.optim.outer_momentum import OuterMomentum
from resnet.optim.train_state import TrainState
from tests.local_sgd import make_state, phase, train_to, values

ALONE = Communicator(ProcessInfo())


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": "muon"}, {"clip_norm": 0.1, "learning_rate_in_velocity": True}],
)
def test_one_rank_by_itself_trains_as_without_local_steps(changes):
    local = [phase(3, "a", sync_every=2), phase(2, "b", sync_every=4, schedule=None)]
    ends = []
    for parts in ([phase(5)], local):
        state = make_state(parts, has_batch_norm=True, **changes)
        train_to(state, ALONE, 5)
        ends.append(values(state.model.variables))
    np.testing.assert_array_equal(*ends)


def test_velocities_are_each_ranks_own_only_in_runs_with_local_steps():
    for every in (1, 2):
        state = make_state([phase(4, "a"), phase(4, "b", sync_every=every)])
        is_local = every > 1
        assert ("velocity/classifier/kernel" in state.rank_variables) is is_local
        assert ("velocity/classifier/kernel" in state.tensors()) is not is_local


def outer(**settings: Any) -> tuple[OuterMomentum, tf.Variable, Any]:
    weights = tf.Variable([4.0, 8.0])
    one = phase(10, sync_every=2, outer_momentum=0.5, **settings)
    return OuterMomentum([weights]), weights, one


def test_the_outer_momentum_is_that_of_its_formula():
    # Rates 0.5 and 0.25. Gradients (4 - 2, 8 - 9) / 0.5 = (4, -2), so the weights are
    # (4, 8) - 0.5 * (4, -2) = (2, 9): without a velocity those of the mean.
    momentum, _, one = outer()
    (first,) = momentum.apply([tf.constant([2.0, 9.0])], one, tf.constant(0.5))
    assert first.numpy().tolist() == [2, 9]
    # (2 - 1, 9 - 9) / 0.25 = (4, 0); velocity (2, -1) + (4, 0).
    (second,) = momentum.apply([tf.constant([1.0, 9.0])], one, tf.constant(0.25))
    assert momentum.velocities[0].numpy().tolist() == [6, -1]
    assert second.numpy().tolist() == [2 - 0.25 * 6, 9 + 0.25 * 1]
    assert momentum.starts[0].numpy().tolist() == second.numpy().tolist()


def test_a_phase_that_freezes_a_layer_leaves_it_after_rounds_with_outer_momentum():
    rates = {"sync_every": 2, "outer_momentum": 0.9}
    frozen = phase(6, "b", layer_rates="/kernel:0", **rates)
    state = make_state([phase(4, "a", **rates), frozen])
    number = state.names.index("classifier/kernel")
    train_to(state, ALONE, 4)
    before = state.trainable_variables[number].numpy()
    train_to(state, ALONE, 10)
    np.testing.assert_array_equal(state.trainable_variables[number].numpy(), before)


def test_nesterovs_outer_momentum_looks_ahead_and_a_rate_of_zero_takes_the_mean():
    momentum, _, one = outer(outer_nesterov=True, outer_learning_rate=0.5)
    (first,) = momentum.apply([tf.constant([2.0, 9.0])], one, tf.constant(0.5))
    # Gradient (4, -2), which is the velocity too; 0.5 * 0.5 * 1.5 of it.
    assert first.numpy().tolist() == [4 - 0.375 * 4, 8 + 0.375 * 2]
    momentum.velocities[0].assign([1.0, 2.0])
    (new,) = momentum.apply([tf.constant([4.0, 8.5])], one, tf.constant(0.0))
    state = [new, *momentum.velocities, *momentum.starts]
    assert values(state).tolist() == [4, 8.5, 1, 2, 4, 8.5]


def test_a_phase_begins_with_the_present_weights_and_resets_if_it_says_so():
    rates = {"sync_every": 2, "outer_momentum": 0.5}
    state: TrainState = make_state(
        [
            phase(2, "a"),
            phase(2, "b", **rates),
            phase(2, "c", **rates, reset_momentum=1),
        ]
    )
    outer = state.outer
    assert outer is not None
    for step, is_begun, is_reset in ((1, 0, 0), (2, 1, 0), (3, 0, 0), (4, 1, 1)):
        for variables, value in (
            (outer.starts, 0.0),
            (outer.velocities, 1.0),
            (state.trainable_variables, 7.0),
        ):
            for variable in variables:
                variable.assign(tf.fill(variable.shape, value))
        state.step = step
        state.begin_step()
        assert set(values(outer.starts)) == {7 * is_begun}
        assert set(values(outer.velocities)) == {1 - is_reset}
