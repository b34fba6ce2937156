import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.optim import losses
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


def assert_close(new: np.ndarray, old: np.ndarray, change: np.ndarray) -> None:
    """To a thousandth of the largest change: the same sums in another order."""
    atol = 1e-3 * abs(change).max() + 2e-7 * abs(old).max()
    np.testing.assert_allclose(new - old, change, rtol=0, atol=atol)


def assert_changes(
    state: TrainState, before: list[np.ndarray], changes: list[np.ndarray]
) -> None:
    """Checks by how much each trainable variable has changed."""
    after = values_of(state.trainable_variables)
    for new, old, change in zip(after, before, changes, strict=True):
        assert_close(new, old, change)


def test_one_step_is_that_of_the_formula(state):
    before = values_of(state.trainable_variables)
    averages = values_of(state.batch_norm_averages)
    loss, gradients = gradients_of(state, batch())
    outcome = step_of(state)(batch(), SETTINGS, stop_requested=True)
    assert outcome.local_loss == pytest.approx(loss, rel=1e-5)
    assert outcome.loss == outcome.local_loss
    assert (outcome.stop_requested, outcome.save_requested) == (True, False)
    changes = [
        # The velocity is the gradient.
        -0.1 * (1 + 0.9) * (gradient + 0.01 * old * decays(name))
        for name, old, gradient in zip(state.names, before, gradients, strict=True)
    ]
    assert_changes(state, before, changes)
    for new, old in zip(values_of(state.batch_norm_averages), averages, strict=True):
        assert not np.array_equal(new, old)


@pytest.mark.parametrize(
    "changes", [{"label_smoothing": 0.25}, {"mixup": 0.2}, {"cutmix": 0.2}], ids=str
)
def test_a_phase_has_its_own_loss(state, changes):
    own = np.array([0.75, 0.5, 1.0, 0.25] * 2, np.float32)
    mixed = batch()._replace(mix_weight=tf.constant(own))
    classifier = state.trainable_variables[state.names.index("classifier/kernel")]
    classifier.assign(np.random.default_rng(0).normal(size=classifier.shape))
    logits = state.model(mixed.images, training=False)
    phase = dataclasses.replace(state.config.phases[0], **changes)
    outcome = step_of_phase(state, phase, freeze_batch_norm=True)(mixed, SETTINGS)
    examples = losses.of_examples(logits, mixed.labels, phase, mixed.mix_weight)
    plain = losses.of_examples(logits, mixed.labels, state.config.phases[0])
    expected = np.mean(examples)
    assert abs(expected - np.mean(plain)) > 1e-3
    assert outcome.loss == pytest.approx(expected, rel=1e-5)


def test_micro_batches_with_class_weights_add_up_to_the_batch(config):
    """Their sums of weights differ: 8 labels 0, 1, 2, 0 and 1, 2, 0, 1."""
    changes = []
    for num_parts in (1, 2):
        own = changed(config, accumulation_steps=num_parts)
        own = dataclasses.replace(own, class_weight_values=(0.0, 5.0, 1.0))
        state = TrainState(own)
        before = values_of(state.trainable_variables)
        logits = state.model(batch().images, training=False).numpy()
        labels = batch().labels.numpy()
        unweighted = np.logaddexp.reduce(logits, 1) - logits[np.arange(8), labels]
        step = step_of_phase(state, own.phases[0], freeze_batch_norm=True)
        outcome = in_parts(step, parts_of(batch(), num_parts), SETTINGS)
        weights = np.array([0, 5, 1, 0, 5, 1, 0, 5])
        assert outcome.loss == pytest.approx(np.mean(weights * unweighted), rel=1e-5)
        after = values_of(state.trainable_variables)
        changes.append([new - old for new, old in zip(after, before, strict=True)])
    for whole, in_two in zip(*changes, strict=True):
        np.testing.assert_allclose(in_two, whole, atol=1e-3 * abs(whole).max())


@pytest.mark.parametrize(
    ("model", "num_parts", "part"),
    [("resnet9", 1, 0), ("resnet8", 2, 0), ("mlp", 2, 1)],
)
def test_one_pixel_that_is_no_number_makes_the_loss_none(
    config, model, num_parts, part
):
    state = TrainState(changed(config, model=model, accumulation_steps=num_parts))
    images = batch().images.numpy()
    images[4 * part + 1, 5, 7, 1] = np.nan
    parts = parts_of(batch()._replace(images=tf.constant(images)), num_parts)
    outcome = in_parts(step_of(state), parts, SETTINGS)
    assert np.isnan(outcome.local_loss)
    assert np.isnan(outcome.loss)


def test_a_phase_can_freeze_normalization_and_have_rates_for_layers(state):
    before = {one.path: one.numpy() for one in state.model.variables}
    rates = {"freeze_batch_norm": True, "layer_rates": "stem:0,classifier:10"}
    step = step_of_phase(state, dataclasses.replace(state.config.phases[0], **rates))
    _, gradients = gradients_of(state, batch(), is_training=False)
    step(batch(), SETTINGS._replace(decay=0.0))
    after = dict(zip(state.names, values_of(state.trainable_variables), strict=True))
    for name, gradient in zip(state.names, gradients, strict=True):
        factor = {"stem": 0, "classifier": 10}.get(name.split("/")[0], 1)
        # Nesterov's first step, from a velocity of 0: 1 + 0.9 times the gradient.
        assert_close(after[name], before[name], -0.1 * factor * 1.9 * gradient)
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
        assert_close(after[name], old, change)


@pytest.mark.parametrize("share", [0.125, 4.0])
def test_weight_decay_is_added_to_gradients_that_are_limited_together(config, share):
    state = TrainState(config)
    before = values_of(state.trainable_variables)
    _, gradients = gradients_of(state, batch())
    norm = np.sqrt(sum(np.square(one, dtype=np.float64).sum() for one in gradients))
    state = TrainState(changed(config, clip_norm=float(share * norm)))
    step_of(state)(batch(), SETTINGS._replace(decay=0.5))
    changes = [
        -0.1 * 1.9 * (min(share, 1.0) * gradient + 0.5 * old * decays(name))
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
