import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from resnet.base.errors import UserError
from resnet.checkpoint import restore
from resnet.checkpoint import tensors as checkpoints
from resnet.checkpoint.step_dirs import of_step
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.config.schedules import Schedule
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.optim.slow_weights import Lookahead
from resnet.optim.train_state import TrainState
from resnet.runtime import versions
from tests.unit.changed_settings import changed
from tests.unit.one_step import values_of

pytestmark = pytest.mark.usefixtures("one_block")

ALONE = Communicator(ProcessInfo())
FALLING = Schedule(init_value=0.0, peak_value=0.1, decay_end=9)
PHASES = (
    Phase(name="first", num_steps=4, schedule=FALLING, weight_decay=0.5),
    Phase(name="second", num_steps=5, schedule=None, weight_decay=2.0),
)


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(seed=3, weight_decay=0.01)


@pytest.fixture
def of_phases(config) -> Config:
    return dataclasses.replace(config, phases=PHASES)


def assert_equal(ours: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("optimizer", "others"),
    [("momentum", ("/gamma", "/beta")), ("lars", ("/gamma", "/beta", "/bias"))],
)
def test_the_variables_that_decay_depend_on_the_optimizer(config, optimizer, others):
    state = TrainState(changed(config, optimizer=optimizer))
    pairs = zip(state.names, state.optimizer.decays, strict=True)
    assert all(decays != name.endswith(others) for name, decays in pairs)


def test_the_penalty_is_that_of_the_phase_of_the_last_step(of_phases):
    state = TrainState(of_phases)
    halves = sum(
        float(np.square(variable, dtype=np.float64).sum()) / 2
        for name, variable in zip(state.names, state.trainable_variables, strict=True)
        if not name.endswith(("/gamma", "/beta"))
    )
    penalties = {}
    for state.step in (0, 1, 4, 5, 9):
        penalties[state.step] = state.weight_penalty() / halves
    # After 4 steps the first phase has ended, but none of the second is done.
    expected = {0: 0.5, 1: 0.5, 4: 0.5, 5: 2.0, 9: 2.0}
    assert penalties == pytest.approx(expected, rel=1e-5)


def test_the_average_forgets_its_beginning_soon(config, of_phases):
    # (1 + step) / (10 + step), up to the one that is set.
    expected = {0: 0.1, 1: 2 / 11, 8989: 8990 / 8999, 8990: 0.999, 10**7: 0.999}
    averaged = changed(config, ema_decay=0.999)
    for step, decay in expected.items():
        assert averaged.ema_decay_at(step) == pytest.approx(decay, rel=1e-15)
    assert changed(config, ema_decay=0.05).ema_decay_at(0) == 0.05
    # A run that begins with a later phase forgets its beginning, too.
    later = changed(of_phases, ema_decay=0.999, first_phase=PHASES[1].name)
    assert later.ema_decay_at(PHASES[0].num_steps + 1) == 2 / 11


def test_averages_are_saved_beside_the_weights(config):
    plain, averaged = TrainState(config), TrainState(changed(config, ema_decay=0.5))
    own = [f"ema/{one.path}" for one in averaged.model.variables]
    assert list(averaged.tensors()) == [*plain.tensors(), *own]
    # The moving statistics have averages too, which each rank moves by its own batches.
    num_statistics = len(plain.batch_norm_averages)
    assert len(averaged.batch_norm_averages) == 2 * num_statistics > 0


def test_averaged_weights_are_there_only_as_long_as_they_are_wanted(config):
    state = TrainState(changed(config, ema_decay=0.5))
    for average in state.ema:
        average.assign(average + 1)
    own, averages = values_of(state.model.variables), values_of(state.ema)
    with state.averaged_weights():
        assert_equal(values_of(state.model.variables), averages)
    assert_equal(values_of(state.model.variables), own)
    with pytest.raises(IndexError), state.averaged_weights():
        raise IndexError
    assert_equal(values_of(state.model.variables), own)


def begun(config: Config, folder: pathlib.Path) -> TrainState:
    state = TrainState(config)
    restore.restore_newest(state, folder, ALONE)
    return state


def test_a_new_run_begins_with_the_phase_that_is_named(of_phases, tmp_path, caplog):
    for name, step in (("", 0), ("first", 0), ("second", 4)):
        config = dataclasses.replace(of_phases, first_phase=name)
        state = begun(config, tmp_path)
        assert (state.step, state.losses, state.best_value) == (step, [], None)
        fresh = TrainState(config).tensors()
        assert_equal(values_of(state.tensors().values()), values_of(fresh.values()))
    words = "starts with phase second, at step 4, from random initialization"
    assert words in caplog.text


@pytest.fixture(scope="module")
def trained(config) -> TrainState:
    """A state none of whose variables has the value that it starts with."""
    state = TrainState(config)
    generator = np.random.default_rng(0)
    for variable in state.tensors().values():
        variable.assign(generator.normal(size=variable.shape))
    state.step, state.losses = 7, [1.0, 2.0]
    return state


@pytest.fixture(scope="module")
def old_run(trained, tmp_path_factory) -> pathlib.Path:
    """A folder with checkpoints of steps 7, which is that state, and 8, of zeros."""
    folder = tmp_path_factory.mktemp("old run")
    tensors = trained.tensors()
    save(folder, trained.config, 7, tensors, eval={"top1": 0.5}, losses=trained.losses)
    zeros = {name: np.zeros(one.shape, np.float32) for name, one in tensors.items()}
    save(folder, trained.config, 8, zeros)
    return folder


def save(
    folder: pathlib.Path, config: Config, step: int, tensors: Any, **metadata: Any
) -> None:
    metadata = {"config": dataclasses.asdict(config), **metadata}
    checkpoints.save(folder, checkpoints.Checkpoint(step, tensors, metadata), 9)


def test_a_run_resumes_from_what_was_saved(config, old_run):
    state = begun(config, old_run)
    assert (state.step, state.losses, state.best_value) == (8, [], None)
    restore.restore(state, checkpoints.load(old_run, 7))
    assert (state.step, state.losses, state.best_value) == (7, [1.0, 2.0], 0.5)


@pytest.mark.parametrize("ema_decay", [0.0, 0.5])
def test_a_new_run_can_begin_with_the_weights_of_another(
    config, of_phases, trained, old_run, tmp_path, ema_decay
):
    state = begun(
        dataclasses.replace(
            of_phases,
            ema_decay=ema_decay,
            initial_weights=str(of_step(old_run, 7)),
            first_phase="second",
        ),
        tmp_path,
    )
    # The weights and nothing else.
    assert (state.step, state.losses, state.best_value) == (4, [], None)
    expected = values_of(trained.model.variables)
    assert_equal(values_of(state.model.variables), expected)
    assert not any(one.any() for one in values_of(state.optimizer.velocities.values()))
    assert_equal(values_of(state.ema), expected if ema_decay else [])


def test_of_a_runs_folder_the_newest_weights_are_taken(config, old_run, tmp_path):
    state = begun(changed(config, initial_weights=str(old_run)), tmp_path)
    assert state.step == 0
    assert not any(one.any() for one in values_of(state.model.variables))


def test_a_resumed_run_takes_no_weights_of_another(config, trained, tmp_path):
    gone = changed(config, initial_weights=str(tmp_path / "gone"))
    save(tmp_path, gone, 3, trained.tensors())
    state = begun(gone, tmp_path)
    assert state.step == 3
    assert_equal(
        values_of(state.tensors().values()), values_of(trained.tensors().values())
    )


def test_a_run_with_other_settings_is_not_gone_on_with(config, old_run):
    other = changed(config, seed=4, weight_decay=0.5, model_dir="model")
    words = r"model holds .* \(seed=3, now 4; weight_decay=0.01, now 0.5\)"
    with pytest.raises(UserError, match=words):
        begun(other, old_run)


def test_a_run_of_other_programs_is_gone_on_with_and_a_warning(
    config, trained, tmp_path, caplog
):
    now = versions.describe()
    (name, *_) = now
    then = {**now, name: "another"}
    for folder in ("same", "other"):
        (tmp_path / folder).mkdir()
    save(tmp_path / "same", config, 3, trained.tensors(), installation=now)
    save(tmp_path / "other", config, 3, trained.tensors(), installation=then)
    assert begun(config, tmp_path / "same").step == 3
    assert caplog.text == ""
    assert begun(config, tmp_path / "other").step == 3
    assert f"of step 3 was saved with a different {name}: the results" in caplog.text


def test_another_number_of_classes_gives_a_new_classifier(
    config, trained, old_run, tmp_path
):
    classes = {"num_classes": 5, "class_names": tuple("abcde")}
    other = changed(config, initial_weights=str(of_step(old_run, 7)), **classes)
    state, fresh = begun(other, tmp_path), TrainState(other)
    for ours, old, new in zip(
        *(one.model.variables for one in (state, trained, fresh)), strict=True
    ):
        expected = new if ours.path.startswith("classifier/") else old
        np.testing.assert_array_equal(ours, expected, err_msg=ours.path)


def test_rates_for_layers_that_do_not_exist_are_refused_before_the_first_step(config):
    with pytest.raises(
        UserError, match="no layer by 'stage9'; the layers are stem, st"
    ):
        TrainState(changed(config, layer_rates="stage9:0"))


@pytest.fixture(scope="module")
def looking_ahead(make_config) -> Config:
    config = make_config(train_steps=7)
    return dataclasses.replace(
        config, lookahead_every=2, lookahead_decay=0.5, lookahead_power=3.0
    )


def test_weights_return_to_the_slow_ones_and_end_as_these(looking_ahead):
    variable = tf.Variable([4.0, -2.0])
    slow = Lookahead([variable], looking_ahead)
    expected, weights = np.array([4.0, -2.0]), np.array([4.0, -2.0])
    for steps in range(1, 8):
        variable.assign_add([1.0, 0.5])  # A step of an optimizer.
        weights = weights + np.array([1.0, 0.5])
        slow.after_step(steps)
        if steps % 2 == 0:
            part = 0.5 * (steps / 7) ** 3
            expected = part * expected + (1 - part) * weights
            weights = expected
        if steps == 7:
            weights = expected
        np.testing.assert_allclose(variable, weights, rtol=1e-6)
        np.testing.assert_allclose(slow.slow[0], expected, rtol=1e-6)


@pytest.mark.usefixtures("one_block")
def test_the_slow_weights_are_a_part_of_the_state(looking_ahead):
    state = TrainState(looking_ahead)
    assert state.lookahead is not None
    names = [f"slow/{one.path}" for one in state.model.variables]
    assert [name for name in state.tensors() if name.startswith("slow/")] == names
    plain = TrainState(dataclasses.replace(looking_ahead, lookahead_every=0))
    num_averages = len(plain.batch_norm_averages)
    assert len(state.batch_norm_averages) == 2 * num_averages > 0
    state.model.variables[0].assign_add(tf.ones_like(state.model.variables[0]))
    state.restart_averages()
    np.testing.assert_array_equal(state.lookahead.slow[0], state.model.variables[0])
