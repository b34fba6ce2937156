"""Local SGD on real ranks: against NumPy, saved in a round, resumed, non-finite."""

import dataclasses
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from resnet import resnet_main
from resnet.checkpoint import integrity, tensors
from resnet.checkpoint.manager import CheckpointManager
from resnet.checkpoint.restore import restore_newest
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.config import rounds
from resnet.config.compression import num_bytes
from resnet.config.phases import Phase, StepSettings
from resnet.config.schedules import Schedule
from resnet.distributed.communicator import Communicator
from resnet.exchange.gradients import LocalExchange, make_exchange
from resnet.metrics.run_log import RunLog
from resnet.optim.train_state import TrainState
from resnet.training.local_sgd import Synchronization
from tests.local_sgd import (
    NO_EXCHANGE,
    Reference,
    do_step,
    each_step,
    make_state,
    phase,
    train_to,
    values,
)
from tests.main_run import FLAGS, read_metrics

IN_3 = pytest.mark.ranks(3)
WARMUP = Schedule(peak_value=0.1, init_value=0.02, warmup_length=3, decay_end=40)
RUNS = {
    "constant": [phase(10, sync_every=4)],
    "post-local": [phase(3, "a"), phase(6, "b", sync_every=4, schedule=None)],
    "together again": [phase(5, "a", sync_every=3), phase(4, "b", schedule=None)],
    "rule": [phase(10, sync_every=2, qsr_coefficient=0.175, schedule=WARMUP)],
    "average": [phase(8, sync_every=3, local_velocities="average")],
    "reset": [phase(8, sync_every=3, local_velocities="reset")],
    "SlowMo": [
        phase(4, "a"),
        phase(8, "b", sync_every=3, outer_momentum=0.6),
        phase(5, "c", sync_every=2, outer_momentum=0.5, reset_momentum=True),
    ],
    "DiLoCo": [
        phase(
            11,
            sync_every=4,
            outer_momentum=0.9,
            outer_nesterov=True,
            outer_learning_rate=0.7,
        )
    ],
}
TOPK = {"compress": "entiremodel", "method": "topk", "ratio": 0.25}
COMPRESSED = {
    "constant": TOPK,
    "rule": {**TOPK, "error_feedback": True},
    "DiLoCo": {**TOPK, "error_feedback": True, "residual_decay": 0.9},
}


@pytest.mark.parametrize("nesterov", [False, pytest.param(True, marks=IN_3)])
@pytest.mark.parametrize(
    ("name", "coding"), [*((name, {}) for name in RUNS), *COMPRESSED.items()]
)
def test_weights_velocities_and_ema_are_those_of_numpy(
    communicator, name, coding, nesterov
):
    num_ranks = communicator.num_ranks
    state = make_state(RUNS[name], nesterov=nesterov, ema_decay=0.8, **coding)
    run = state.config
    expected = Reference(run, values(state.trainable_variables), num_ranks)
    num_apart = 0
    for step in each_step(state, communicator):
        expected.do_step(step)
        of_ranks = communicator.allgather(values(state.trainable_variables))
        np.testing.assert_allclose(of_ranks, expected.weights, rtol=1e-4, atol=1e-5)
        own = values(state.optimizer.velocities.values())
        np.testing.assert_allclose(
            own, expected.velocities[communicator.rank], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            values(state.ema), expected.ema, rtol=1e-4, atol=1e-5
        )
        are_equal = all((one == of_ranks[0]).all() for one in of_ranks)
        assert are_equal is rounds.is_synchronized(run.phases, step + 1)
        num_apart += not are_equal
    assert num_apart > 0
    if state.outer is not None and state.outer.velocities:
        found = values(state.outer.velocities)
        np.testing.assert_allclose(found, expected.outer, rtol=1e-4, atol=1e-5)
    if coding.get("error_feedback"):
        residual = state.rank_variables["residual/model"].numpy()
        assert np.abs(residual).max() > 1e-3
        own = expected.residuals[communicator.rank]
        np.testing.assert_allclose(residual, own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("velocities", ["average", pytest.param("keep", marks=IN_3)])
def test_an_average_in_each_step_is_the_exchange_of_gradients(communicator, velocities):
    together = phase(6, momentum=0.9)
    apart = dataclasses.replace(
        together, qsr_coefficient=1e-9, local_velocities=velocities
    )
    ends = []
    for one in (together, apart):
        state = make_state([one], has_batch_norm=True)
        first = values(state.trainable_variables)
        train_to(state, communicator, 6)
        ends.append(values(state.trainable_variables))
    assert np.abs(ends[0] - first).max() > 0.02
    # The same sums in another order: some roundings (6e-8) a step.
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-5, atol=1e-5)


@IN_3
def test_the_averages_of_batch_norm_and_the_ema_follow_the_averaged_weights(
    communicator,
):
    num_ranks = communicator.num_ranks
    state = make_state([phase(9, sync_every=3)], has_batch_norm=True, ema_decay=0.2)
    exchange = make_exchange(state.config, state.shapes, communicator)
    synchronize = Synchronization(state, communicator, exchange)
    for _ in range(3):
        do_step(state, communicator)
    before = values(state.ema)
    own = [variable.value.numpy().ravel() for variable in state.model.variables]
    of_ranks = communicator.allgather(np.concatenate(own))
    assert all((one != of_ranks[0]).any() for one in of_ranks[1:])
    averages = communicator.allgather(values(state.batch_norm_averages))
    assert np.abs(averages[0] - averages[1]).max() > 1e-3
    account = synchronize(NO_EXCHANGE)
    num_values = sum(
        variable.shape.num_elements()
        for variable in [*state.trainable_variables, *state.batch_norm_averages]
    )
    assert account.message_bytes == 4 * num_values
    assert account.bytes_sent == round(8 * num_values * (num_ranks - 1) / num_ranks)
    assert account.exposed_seconds > 0
    mean = np.mean(of_ranks, axis=0)
    found = [variable.value.numpy().ravel() for variable in state.model.variables]
    np.testing.assert_allclose(np.concatenate(found), mean, rtol=1e-5, atol=1e-6)
    # Decays of the three steps: 1/10, 2/11, and 0.2 where 3/12 would be more.
    decay = 1 / 10 * 2 / 11 * 0.2
    expected = decay * before + (1 - decay) * mean
    np.testing.assert_allclose(values(state.ema), expected, rtol=1e-5, atol=1e-6)
    same = communicator.allgather(values(state.ema).tobytes())
    assert same == same[:1] * num_ranks


def test_with_compression_nothing_but_the_changes_of_the_weights_is_sent(communicator):
    state = make_state([phase(6, sync_every=3)], has_batch_norm=True, **TOPK)
    exchange = make_exchange(state.config, state.shapes, communicator)
    synchronize = Synchronization(state, communicator, exchange)
    accounts = []
    for _ in range(3):
        do_step(state, communicator)
        accounts.append(synchronize(NO_EXCHANGE))
    num_values = sum(map(math.prod, state.shapes.values()))
    most = num_bytes(state.config, [num_values])  # About so many.
    assert accounts[:2] == [NO_EXCHANGE] * 2
    assert accounts[2].message_bytes == pytest.approx(most, rel=0.1)
    others = communicator.num_ranks - 1
    assert accounts[2].bytes_sent == others * accounts[2].message_bytes
    assert 0 < accounts[2].compression_error < 1
    averages = communicator.allgather(values(state.batch_norm_averages))
    assert np.abs(averages[0] - averages[1]).max() > 1e-3


def test_a_gradient_that_is_not_finite_is_told_to_all_ranks(communicator):
    exchange = tf.function(LocalExchange(communicator.collectives, []), autograph=False)
    gradient = np.float32([1, 2])
    if communicator.rank == 1:
        gradient[0] = np.nan
    flags = tf.constant([0.0, float(communicator.rank == 1)])
    settings = StepSettings(0.1, 0.9, 0.9, 0.0)
    result = exchange([tf.constant(gradient)], tf.constant(3.0), flags, settings)
    assert np.isnan(result.loss)
    assert np.isnan(result.local_loss) == (communicator.rank == 1)
    np.testing.assert_array_equal(result.gradients[0], gradient)
    assert result.flags.numpy() == pytest.approx([0, 0.5])


def saved_state(
    communicator: Communicator, model_dir: Path, parts: list[Phase]
) -> TrainState:
    """Returns the state of the run in a folder, restored or new."""
    state = make_state(parts, model_dir=str(model_dir), ema_decay=0.5)
    restore_newest(state, model_dir, communicator)
    return state


def values_of_rank(rank: int, number: int, shape) -> np.ndarray:
    draw = np.random.default_rng([rank, number])
    return draw.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("num_before", "num_now"), [(2, 1), pytest.param(2, 3, marks=IN_3)]
)
def test_on_other_ranks_each_has_the_mean_weights_and_velocities_of_one(
    lockstep, tmp_path, num_before, num_now, caplog
):
    parts = [phase(10, sync_every=4)]

    def own_variables(state: TrainState) -> list[tf.Variable]:
        return [*state.trainable_variables, *state.optimizer.velocities.values()]

    if (before := lockstep.first_ranks(num_before)) is not None:
        state = saved_state(before, tmp_path, parts)
        manager = CheckpointManager(state.config, state, before)
        state.step = 6
        for number, variable in enumerate(own_variables(state)):
            variable.assign(values_of_rank(before.rank, number, variable.shape))
        manager.save({})
        manager.finish()
        for number, variable in enumerate(own_variables(state)):  # As they were.
            expected = values_of_rank(before.rank, number, variable.shape)
            np.testing.assert_array_equal(variable, expected)
    lockstep.gather(None)
    if (now := lockstep.first_ranks(num_now)) is not None:
        state = saved_state(now, tmp_path, parts)
        assert state.step == 6
        for number, variable in enumerate(own_variables(state)):
            of_ranks = [
                values_of_rank(rank, number, variable.shape)
                for rank in range(num_before)
            ]
            expected = np.mean(of_ranks, axis=0)
            if number >= len(state.trainable_variables):
                expected = of_ranks[now.rank % num_before]
            np.testing.assert_allclose(variable, expected, rtol=1e-5, atol=1e-6)
        # Evaluations read the mean of the weights, without the ranks' files.
        saved = tensors.load(tmp_path, 6).tensors["model/classifier/kernel"]
        kernel = state.trainable_variables[0]
        np.testing.assert_allclose(saved, kernel, rtol=1e-5, atol=1e-6)
        means = "the weights are the mean over the old ranks"
        assert (
            f"the velocities are those of one of the old ranks, {means}"
            in (caplog.messages[-1])
        )
    lockstep.gather(None)
    if lockstep.rank == 0:  # As in all but the two newest checkpoints.
        integrity.drop_rank_files(of_step(tmp_path, 6))
    lockstep.gather(None)
    if now is not None:
        state = saved_state(now, tmp_path, parts)
        assert f"the velocities begin with zeros, {means}" in caplog.messages[-1]
        assert not any(np.any(one) for one in state.optimizer.velocities.values())
        np.testing.assert_array_equal(state.trainable_variables[0], saved)


def test_the_logged_weight_penalty_is_the_mean_over_ranks(communicator, tmp_path):
    state = make_state([phase(8, sync_every=4)], model_dir=str(tmp_path))
    train_to(state, communicator, 2)
    own = communicator.allgather(state.weight_penalty())
    assert own[0] != pytest.approx(own[1], rel=1e-4)
    with closing(RunLog(state.config, state, communicator)) as log:
        assert log._weight_penalty() == pytest.approx(sum(own) / 2, rel=1e-6)


LOCAL = (
    "--sync_every=4",
    "--outer_momentum=0.5",
    "--ema_decay=0.5",
    "--log_step_count_steps=1",
)


@pytest.fixture
def train(run, records):
    """Returns `train(model_dir, *flags)`: a run of 6 steps, of rounds of 4 and 2."""

    def train(model_dir: Path, *flags: str):
        folders = (f"--data_dir={records}", f"--model_dir={model_dir}")
        run(resnet_main, *FLAGS, *folders, *LOCAL, *flags)

    return train


CODED = ("--compress=entiremodel", "--ratio=0.1", "--error_feedback")


@pytest.mark.parametrize("coding", [(), (*CODED, "--residual_decay=0.95")])
def test_saves_and_evaluations_wait_for_the_end_of_a_round(
    train, lockstep, tmp_path, coding
):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(whole, *coding)
    assert saved_steps(whole) == [4, 6]  # Wanted every 3 steps, as evaluations are.
    lines = [(line["kind"], line["step"]) for line in read_metrics(whole)]
    assert [step for kind, step in lines if kind == "train"] == [1, 2, 3, 4, 5, 6]
    assert [step for kind, step in lines if kind == "eval"] == [4, 6]
    assert [step for kind, step in lines if kind == "eval_ema"] == [4, 6]
    bytes_of = {
        line["step"]: line["message_bytes_per_step"]
        for line in read_metrics(whole)
        if line["kind"] == "train"
    }
    assert [step for step in bytes_of if bytes_of[step]] == [4, 6]
    train(stopped, "--stop_after_steps=5", *coding)
    assert saved_steps(stopped) == [4, 5]
    own = tensors.load_rank(of_step(stopped, 5), lockstep.rank, lockstep.num_ranks)
    kinds = {"velocity", "weight", *["residual"][: len(coding)]}
    assert {name.partition("/")[0] for name in own} == kinds
    train(stopped, *coding)
    assert_same_end(stopped, whole)


def assert_same_end(model_dir: Path, whole: Path) -> None:
    """Checks that two runs have saved the same, bit for bit, after step 6."""
    found, expected = tensors.load(model_dir, 6), tensors.load(whole, 6)
    assert found.tensors.keys() == expected.tensors.keys()
    assert any(name.startswith("outer_velocity/") for name in found.tensors)
    for name, value in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], value, err_msg=name)
    for rank in range(expected.metadata["num_ranks"]):
        ours, others = (
            tensors.load_rank(of_step(folder, 6), rank, expected.metadata["num_ranks"])
            for folder in (model_dir, whole)
        )
        assert ours.keys() == others.keys()
        for name, value in others.items():
            np.testing.assert_array_equal(ours[name], value, err_msg=name)
    losses = [
        [(line["step"], line["loss"]) for line in read_metrics(folder)]
        for folder in (model_dir, whole)
    ]
    assert losses[0] == losses[1]
