"""What is checked and kept when a checkpoint is taken, and where it may be written."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.checkpoint import async_writer, step_dirs, tensors
from resnet.checkpoint.manager import CheckpointManager, take_snapshot
from resnet.distributed.communicator import AgreedError, AgreedFailure, Communicator
from resnet.exchange.gradients import GradientExchange
from resnet.hardware.placement import ProcessInfo
from resnet.optim.train_state import TrainState
from resnet.runtime.run_lock import RunLock
from resnet.training.train_step import TrainStep
from tests.unit import one_step

ALONE = Communicator(ProcessInfo())


@pytest.fixture
def state(make_config) -> TrainState:
    return TrainState(make_config())


def set_value(variable: tf.Variable, value: float) -> None:
    array = variable.numpy()
    array.flat[-1] = value
    variable.assign(array)


@pytest.mark.parametrize(
    "name", ["model/classifier/kernel", "velocity/classifier/kernel", "ema", "average"]
)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_nothing_is_saved_that_is_not_finite(make_config, name, bad):
    state = TrainState(make_config(ema_decay=0.5))
    names = {"ema": "ema/classifier/kernel", "average": list(state.named_averages)[-1]}
    name = names.get(name, name)
    set_value(state.tensors()[name], bad)
    with pytest.raises(AgreedFailure, match=f"^{name} after step 0 is not finite on"):
        take_snapshot(state, {}, ALONE)


def test_finite_values_whose_sum_is_not_are_saved(state):
    for variable in state.trainable_variables:
        variable.assign(tf.fill(variable.shape, 3e38))
    assert take_snapshot(state, {}, ALONE) is not None


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
