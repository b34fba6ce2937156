"""What is checked and kept when a checkpoint is taken, and where it may be written."""

import dataclasses
import platform

import numpy as np
import pytest

from resnet.checkpoint import async_writer, step_dirs, tensors
from resnet.checkpoint.manager import CheckpointManager, check_weights, take_snapshot
from resnet.distributed.communicator import AgreedError, AgreedFailure, Communicator
from resnet.exchange.gradients import GradientExchange
from resnet.hardware.placement import ProcessInfo
from resnet.optim.train_state import TrainState
from resnet.runtime.divergence import check_equal
from resnet.runtime.run_lock import RunLock
from resnet.training.train_step import TrainStep
from tests.unit import one_step

ALONE = Communicator(ProcessInfo())


class Ranks(Communicator):
    """One rank, and what the others would say."""

    def __init__(self, others) -> None:
        super().__init__(ProcessInfo(0, 1 + len(others), 0, 1))
        self._others = others
        self.said: list[tuple] = []

    def allgather(self, value):
        self.said.append(value)
        return [value, *(other(value) for other in self._others)]


@pytest.fixture
def state(make_config) -> TrainState:
    return TrainState(make_config())


def same(value):
    return (*value[:2], "node9")


def drifted(value):
    return (value[0] ^ 1, value[1], "node9")


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ([same, drifted], "rank 2 on node9 differ from the others"),
        ([drifted, drifted], f"rank 0 on {platform.node()} differ from the others"),
        ([drifted], f"rank 0 on {platform.node()} differ from those of rank 1 on"),
    ],
)
def test_a_rank_that_drifts_is_named(state, others, named):
    check_weights(state, Ranks([same, same]))
    with pytest.raises(AgreedFailure, match=f"all ranks; those of {named}"):
        check_weights(state, Ranks(others))


@pytest.mark.parametrize(
    ("digests", "named"),
    [
        ((7, 7, 7), None),
        ((7, 8, 7, 8, 7), "rank 1 on b, rank 3 on d differ from the others"),
        ((8, 7, 7, 6), "rank 0 on a, rank 3 on d differ from the others"),
        ((7, 8), "rank 0 on a differ from those of rank 1 on b, and it is unknown"),
        (
            (8, 7, 7, 8),
            "rank 0 on a, rank 3 on d differ from those of rank 1 on b, rank 2 on c",
        ),
        ((7, 8, 9), "rank 0 on a differ from those of rank 1 on b, rank 2 on c, and"),
    ],
)
def test_only_a_majority_says_which_rank_is_wrong(digests, named):
    hosts = "abcde"[: len(digests)]
    if named is None:
        check_equal("they", digests, hosts)
        return
    with pytest.raises(AgreedFailure, match=f"; those of {named}") as error:
        check_equal("they", digests, hosts)
    assert ("start again without it" in str(error.value)) == ("others" in named)


@pytest.mark.parametrize("are_equal", [True, False])
def test_one_bit_of_one_weight_matters_only_where_ranks_must_agree(state, are_equal):
    ranks = Ranks([same])
    check_weights(state, ranks, are_equal)
    variable = state.trainable_variables[3]
    value = variable.numpy()
    value.flat[-1] = np.nextafter(value.flat[-1], np.float32(1))
    variable.assign(value)
    check_weights(state, ranks, are_equal)
    digests = [digest for digest, _, _ in ranks.said]
    assert (digests[0] != digests[1]) is are_equal


@pytest.mark.parametrize(("bad", "are_equal"), [(np.nan, True), (-np.inf, False)])
def test_weights_that_are_not_finite_are_refused(state, bad, are_equal):
    variable = state.trainable_variables[0]
    value = variable.numpy()
    value.flat[0] = bad
    variable.assign(value)
    with pytest.raises(AgreedFailure, match="are not finite"):
        check_weights(state, Ranks([]), are_equal)


def test_a_snapshot_stays_as_it_was_when_a_step_updates_the_weights(state):
    exchange = GradientExchange(ALONE.collectives, state.names)
    train_step = TrainStep(state, state.config.phases[0], exchange)
    settings = one_step.SETTINGS._replace(learning_rate=1.0)
    train_step(one_step.batch(), settings)
    state.losses = [1.0, 2.0]
    snapshot = take_snapshot(state, {}, ALONE)
    before = {name: np.array(value) for name, value in snapshot.tensors.items()}
    assert before.keys() == state.tensors().keys()
    train_step(one_step.batch(seed=2), settings)
    state.losses.clear()
    assert snapshot.metadata["losses"] == [1.0, 2.0]
    for name, value in snapshot.tensors.items():
        np.testing.assert_array_equal(value.numpy(), before[name], err_msg=name)
        assert not np.array_equal(state.tensors()[name].numpy(), before[name]), name


def test_the_last_checkpoint_of_a_phase_is_tried_again(
    make_config, tmp_path, monkeypatch
):
    save, failures = tensors.save, [OSError(28, "No space left on device")]

    def fail_once(*arguments):
        if failures:
            raise failures.pop()
        return save(*arguments)

    monkeypatch.setattr(tensors, "save", fail_once)
    monkeypatch.setattr(async_writer, "_BETWEEN_LAST_TRIES_SECONDS", 0.0)
    config = dataclasses.replace(make_config(), model_dir=str(tmp_path))
    state = TrainState(config)
    manager = CheckpointManager(config, state, ALONE)
    state.step = config.phases[0].num_steps
    manager.save({})
    assert failures == []
    assert step_dirs.saved_steps(tmp_path) == [state.step]


def test_what_was_trained_on_changed_records_is_not_saved(make_config, tmp_path, state):
    def refuse(_: Communicator) -> None:
        raise AgreedError("the records have changed")

    config = dataclasses.replace(make_config(), model_dir=str(tmp_path))
    manager = CheckpointManager(config, state, ALONE, None, refuse)
    state.step = 1
    with pytest.raises(AgreedError, match="the records have changed"):
        manager.save({})
    manager.close()
    assert step_dirs.saved_steps(tmp_path) == []


@pytest.mark.parametrize("when", ["before the save", "after it"])
def test_a_run_whose_folder_is_moved_ends_and_writes_no_other(
    make_config, tmp_path, when
):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    config = dataclasses.replace(make_config(), model_dir=str(model_dir))
    lock = RunLock(model_dir)
    state = TrainState(config)
    manager = CheckpointManager(config, state, ALONE, lock)
    manager.save({})
    state.step = 1
    if when == "after it":
        manager.save({})
        manager.close()
    model_dir.rename(tmp_path / "elsewhere")
    end = manager.finish if when == "after it" else lambda: manager.save({})
    with pytest.raises(AgreedError, match=rf"was moved to {tmp_path}/elsewhere"):
        end()
    assert not model_dir.exists()
    lock.release()
