import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.exchange.gradients import nan_unless_finite
from resnet.optim.train_state import TrainState
from tests.unit.changed_settings import changed
from tests.unit.one_step import (
    SETTINGS,
    batch,
    config_of,
    gradients_of,
    in_parts,
    parts_of,
    step_of,
    step_of_phase,
    values_of,
)

pytestmark = pytest.mark.usefixtures("one_block")


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return config_of(make_config)


@pytest.fixture
def state(config) -> TrainState:
    return TrainState(config)


def decays(name: str) -> bool:
    return not name.endswith(("/gamma", "/beta"))


def assert_changes(
    state: TrainState, before: list[np.ndarray], changes: list[np.ndarray]
) -> None:
    """Checks by how much each trainable variable has changed.

    To a thousandth of the largest change of each variable: the same sums in another
    order, through all layers.
    """
    for name, variable, old, change in zip(
        state.names, state.trainable_variables, before, changes, strict=True
    ):
        np.testing.assert_allclose(
            variable.numpy() - old,
            change,
            rtol=1e-3,
            atol=1e-3 * abs(change).max() + 1e-7,
            err_msg=name,
        )


@pytest.mark.parametrize("model", ["resnet9", "resnet8"])
def test_one_step_is_that_of_the_formula(config, model):
    state = TrainState(changed(config, model=model))
    before = values_of(state.trainable_variables)
    averages = values_of(state.batch_norm_averages)
    loss, gradients = gradients_of(state, batch())
    outcome = step_of(state)(batch(), SETTINGS, stop_requested=True)
    assert outcome.local_loss == pytest.approx(loss, rel=1e-5)
    assert outcome.loss == outcome.local_loss
    assert outcome.stop_requested
    assert not outcome.save_requested
    changes = []
    for name, old, total in zip(state.names, before, gradients, strict=True):
        if name.rpartition("/")[2] not in ("gamma", "beta"):
            total = total + 0.01 * old
        changes.append(-0.1 * (1 + 0.9) * total)  # The velocity is the gradient.
    assert_changes(state, before, changes)
    moved = values_of(state.batch_norm_averages)
    assert all(
        not np.array_equal(new, old) for new, old in zip(moved, averages, strict=True)
    )


def test_a_phase_has_its_own_momentum_and_weight_decay(state):
    before = values_of(state.trainable_variables)
    _, gradients = gradients_of(state, batch())
    phase = dataclasses.replace(state.config.phases[0], momentum=0.5, weight_decay=0.5)
    settings = StepSettings(0.1, 0.5, 0.5, 0.5)
    step_of_phase(state, phase)(batch(), settings)
    changes = [
        -0.1 * (1 + 0.5) * (gradient + 0.5 * old * decays(name))
        for name, old, gradient in zip(state.names, before, gradients, strict=True)
    ]
    assert_changes(state, before, changes)


def test_nesterov_looks_ahead_by_the_phases_momentum_whatever_the_velocity_is_times(
    state,
):
    step = step_of(state)
    velocities = [0.0] * len(state.names)
    for momentum in (0.9, 0.45):  # As where a corrected rate has doubled.
        before = values_of(state.trainable_variables)
        _, gradients = gradients_of(state, batch())
        step(batch(), SETTINGS._replace(velocity_factor=momentum))
        totals = [
            gradient + 0.01 * old * decays(name)
            for name, old, gradient in zip(state.names, before, gradients, strict=True)
        ]
        velocities = [
            momentum * velocity + total
            for velocity, total in zip(velocities, totals, strict=True)
        ]
        changes = [
            -0.1 * (total + 0.9 * velocity)
            for velocity, total in zip(velocities, totals, strict=True)
        ]
        assert_changes(state, before, changes)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_a_phase_has_its_own_label_smoothing(state):
    logits = state.model(batch().images, training=False).numpy().astype(np.float64)
    phase = dataclasses.replace(state.config.phases[0], label_smoothing=0.25)
    step = step_of_phase(state, phase, freeze_batch_norm=True)
    outcome = step(batch(), SETTINGS)
    targets = 0.75 * np.eye(3)[batch().labels] + 0.25 / 3
    expected = -(targets * log_softmax(logits)).sum(1).mean()
    assert outcome.loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("what", ["mixup", "cutmix"])
def test_mixed_examples_are_taught_the_labels_of_both(state, what):
    share = np.array([0.75, 0.5, 1.0, 0.25] * 2, np.float32)
    mixed = batch()._replace(mix_weight=tf.constant(share))
    logits = state.model(mixed.images, training=False).numpy().astype(np.float64)
    phase = dataclasses.replace(state.config.phases[0], **{what: 0.2})
    step = step_of_phase(state, phase, freeze_batch_norm=True)
    outcome = step(mixed, SETTINGS)
    labels = np.arange(8) % 3
    partners = labels[[1, 0, 3, 2, 5, 4, 7, 6]]
    targets = share[:, None] * np.eye(3)[labels]
    targets += (1 - share)[:, None] * np.eye(3)[partners]
    expected = -(targets * log_softmax(logits)).sum(1).mean()
    assert outcome.loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", ["resnet9", "resnet8"])
def test_one_pixel_that_is_no_number_makes_the_loss_none(config, model):
    state = TrainState(changed(config, model=model))
    images = batch().images.numpy()
    images[2, 5, 7, 1] = np.nan
    outcome = step_of(state)(batch()._replace(images=images), SETTINGS)
    assert np.isnan(outcome.local_loss)
    assert np.isnan(outcome.loss)


@pytest.mark.parametrize("part", [0, 1])
def test_a_pixel_that_is_no_number_in_any_part_makes_the_loss_none(config, part):
    state = TrainState(changed(config, accumulation_steps=2))
    images = batch().images.numpy()
    images[4 * part + 1, 5, 7, 1] = np.nan
    parts = parts_of(batch()._replace(images=tf.constant(images)), 2)
    outcome = in_parts(step_of(state), parts, SETTINGS)
    assert np.isnan(outcome.local_loss)
    assert np.isnan(outcome.loss)


@pytest.mark.parametrize(
    ("gradient", "is_number"),
    [([1.0, -2.0], True), ([1.0, np.nan], False), ([np.inf, 1.0], False)],
)
def test_a_loss_is_none_if_the_first_gradient_is(gradient, is_number):
    loss = nan_unless_finite(tf.constant(0.5), tf.constant(gradient))
    assert float(loss) == 0.5 if is_number else np.isnan(loss)


def test_frozen_normalization_leaves_the_averages_and_moves_the_weights(state):
    before = values_of(state.trainable_variables)
    averages = values_of(state.batch_norm_averages)
    step_of(state, freeze_batch_norm=True)(batch(), SETTINGS)
    for new, old in zip(values_of(state.batch_norm_averages), averages, strict=True):
        np.testing.assert_array_equal(new, old)
    weights = dict(zip(state.names, values_of(state.trainable_variables), strict=True))
    for name, old in zip(state.names, before, strict=True):
        if name.endswith("/kernel"):
            assert not np.array_equal(weights[name], old), name


def test_a_phase_can_freeze_normalization_and_have_rates_for_layers(state):
    before = {one.path: one.numpy() for one in state.model.variables}
    phase = dataclasses.replace(
        state.config.phases[0],
        freeze_batch_norm=True,
        layer_rates="stem:0,classifier:10",
    )
    step = step_of_phase(state, phase)
    _, gradients = gradients_of(state, batch(), is_training=False)
    step(batch(), SETTINGS._replace(decay=0.0))
    for name, gradient in zip(state.names, gradients, strict=True):
        factor = {"stem": 0, "classifier": 10}.get(name.split("/")[0], 1)
        # Nesterov's first step, from a velocity of 0: 1 + 0.9 times the gradient.
        change = -0.1 * factor * 1.9 * gradient
        after = dict(
            zip(state.names, values_of(state.trainable_variables), strict=True)
        )
        atol = 1e-3 * abs(change).max() + 2e-7 * abs(before[name]).max()
        np.testing.assert_allclose(
            after[name] - before[name], change, rtol=0, atol=atol, err_msg=name
        )
    for one in state.model.non_trainable_variables:
        np.testing.assert_array_equal(one, before[one.path])


def test_gradients_of_frozen_layers_do_not_count_in_the_limit(config, state):
    _, gradients = gradients_of(state, batch(), is_training=False)
    by_name = dict(zip(state.names, gradients, strict=True))
    trained = [name for name in by_name if not name.startswith("classifier/")]
    norm = float(np.sqrt(sum((by_name[name] ** 2).sum() for name in trained)))
    clipped = TrainState(changed(config, clip_norm=norm / 2))
    before = dict(zip(state.names, values_of(clipped.trainable_variables), strict=True))
    phase = dataclasses.replace(
        *clipped.config.phases, freeze_batch_norm=True, layer_rates="classifier:0"
    )
    step_of_phase(clipped, phase)(batch(), StepSettings(1.0, 0.0, 0.0, 0.0))
    after = dict(zip(state.names, values_of(clipped.trainable_variables), strict=True))
    for name, old in before.items():
        change = -by_name[name] / 2 if name in trained else 0 * old
        # A thousandth of the largest change, and the rounding of the weights.
        atol = 1e-3 * abs(change).max() + 2e-7 * abs(old).max()
        np.testing.assert_allclose(after[name] - old, change, rtol=0, atol=atol)


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_gradients_longer_than_the_limit_are_shortened_together(config, share):
    state = TrainState(config)
    before = values_of(state.trainable_variables)
    _, gradients = gradients_of(state, batch())
    norm = np.sqrt(sum(np.square(one, dtype=np.float64).sum() for one in gradients))
    state = TrainState(changed(config, clip_norm=float(share * norm)))
    step_of(state)(batch(), SETTINGS._replace(decay=0.0))
    factor = min(share, 1.0)
    assert_changes(state, before, [-0.1 * 1.9 * factor * one for one in gradients])


def test_weight_decay_is_added_behind_the_limit(config):
    state = TrainState(config)
    before = values_of(state.trainable_variables)
    _, gradients = gradients_of(state, batch())
    norm = np.sqrt(sum(np.square(one, dtype=np.float64).sum() for one in gradients))
    state = TrainState(changed(config, clip_norm=float(norm) / 8))
    step_of(state)(batch(), SETTINGS._replace(decay=0.5))
    changes = [
        -0.1 * 1.9 * (gradient / 8 + 0.5 * old * decays(name))
        for name, old, gradient in zip(state.names, before, gradients, strict=True)
    ]
    assert_changes(state, before, changes)


def test_the_moving_average_of_the_weights_is_that_of_the_formula(config):
    state = TrainState(changed(config, ema_decay=0.999))
    step = step_of(state)
    expected = [value.astype(np.float64) for value in values_of(state.model.variables)]
    for number in range(3):
        decay = state.config.ema_decay_at(number)
        assert decay == (1 + number) / (10 + number)
        step(batch(seed=number), SETTINGS._replace(ema_decay=decay))
        expected = [
            decay * average + (1 - decay) * value
            for average, value in zip(
                expected, values_of(state.model.variables), strict=True
            )
        ]
    for variable, average, value in zip(
        state.model.variables, state.ema, expected, strict=True
    ):
        # A few roundings of a float32 of the largest of them.
        np.testing.assert_allclose(
            average.numpy(),
            value,
            rtol=1e-5,
            atol=1e-6 * abs(value).max(),
            err_msg=variable.path,
        )
        if variable.path in ("stem/kernel", "classifier/kernel"):
            assert not np.array_equal(average.numpy(), variable.numpy()), variable.path


def test_without_an_average_there_is_none(state):
    assert state.ema == []
    step_of(state)(batch(), SETTINGS)
    assert not any(name.startswith("ema/") for name in state.tensors())
