"""Local SGD on one rank, and an outer momentum."""

import numpy as np
import pytest
import tensorflow as tf

from resnet.distributed.communicator import Communicator
from resnet.exchange.gradients import make_exchange
from resnet.hardware.placement import ProcessInfo
from resnet.optim.slow_weights import OuterMomentum
from resnet.training.local_sgd import Synchronization
from tests.local_sgd import NO_EXCHANGE, do_step, make_state, phase, train_to, values

ALONE = Communicator(ProcessInfo())
FEEDBACK = {"compress": "layerwise", "ratio": 0.3, "error_feedback": True}  # topk


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


def test_what_a_round_sends_and_leaves_is_its_change_and_what_was_left_before():
    state = make_state([phase(12, sync_every=3)], **FEEDBACK, residual_decay=0.5)
    communicator, before, left = ALONE, values(state.trainable_variables), 0
    exchange = make_exchange(state.config, state.shapes, communicator)
    synchronize = Synchronization(state, communicator, exchange)
    for number in range(12):
        do_step(state, communicator)
        if number % 3 < 2:
            continue
        change = before - values(state.trainable_variables) + 0.5 * left
        synchronize(NO_EXCHANGE)
        sent = before - values(state.trainable_variables)
        left = values(exchange.rank_variables.values())
        np.testing.assert_allclose(sent + left, change, atol=1e-6)
        assert 0 < np.count_nonzero(sent) < sent.size
        assert np.count_nonzero(left) == left.size - np.count_nonzero(sent)
        before = values(state.trainable_variables)
        np.testing.assert_array_equal(values(state.outer.starts), before)
    assert not [name for name in state.tensors() if "outer_velocity" in name]


def test_velocities_are_each_ranks_own_only_in_runs_with_local_steps():
    for every in (1, 2):
        state = make_state([phase(4, "a"), phase(4, "b", sync_every=every)])
        is_local = every > 1
        assert ("velocity/classifier/kernel" in state.rank_variables) is is_local
        assert ("velocity/classifier/kernel" in state.tensors()) is not is_local


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_phase_that_freezes_a_layer_leaves_it_after_rounds_with_starts(momentum):
    rates = {"sync_every": 2, "outer_momentum": momentum}
    frozen = phase(6, "b", layer_rates="/kernel:0", **rates)
    state = make_state([phase(4, "a", **rates), frozen], **FEEDBACK)
    number = state.names.index("classifier/kernel")
    train_to(state, ALONE, 4)
    before = state.trainable_variables[number].numpy()
    train_to(state, ALONE, 10)
    np.testing.assert_array_equal(state.trainable_variables[number].numpy(), before)


def test_nesterovs_outer_momentum_looks_ahead_and_a_rate_of_zero_takes_the_mean():
    rates = {"outer_momentum": 0.5, "outer_learning_rate": 0.5}
    one = phase(10, sync_every=2, outer_nesterov=True, **rates)
    momentum = OuterMomentum([tf.Variable([4.0, 8.0])])
    (first,) = momentum.apply([tf.constant([2.0, 9.0])], one, tf.constant(0.5))
    # Gradient (4, -2), which is the velocity too; 0.5 * 0.5 * 1.5 of it.
    assert first.numpy().tolist() == [4 - 0.375 * 4, 8 + 0.375 * 2]
    momentum.velocities[0].assign([1.0, 2.0])
    (new,) = momentum.apply([tf.constant([4.0, 8.5])], one, tf.constant(0.0))
    state = [new, *momentum.velocities, *momentum.starts]
    assert values(state).tolist() == [4, 8.5, 1, 2, 4, 8.5]
