import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.phases import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.gradients import GradientExchange
from resnet.hardware.placement import ProcessInfo
from resnet.models import alexnet
from resnet.models.layers import dropout
from resnet.models.layers.dropout import Dropout
from resnet.optim.train_state import TrainState
from resnet.training.train_step import TrainStep
from tests.unit.one_step import batch, in_parts, parts_of


def mask_of(key: int, examples, units: int = 64, rate: float = 0.5, seed: int = 3):
    """Returns which features of each example are kept, `[batch, units]` bool."""
    examples = tf.constant(examples, tf.int64)
    layer = Dropout(rate, seed, "dropout")
    with dropout.keyed(tf.constant(key, tf.int64), examples):
        outputs = layer(tf.ones([len(examples), units]), training=True).numpy()
    kept = outputs > 0
    np.testing.assert_allclose(outputs[kept], 1 / (1 - rate), rtol=1e-6)
    return kept


def test_in_evaluation_nothing_is_dropped():
    features = tf.random.normal([2, 5])
    layer = Dropout(0.5, 0, "dropout")
    np.testing.assert_array_equal(layer(features), features)
    np.testing.assert_array_equal(layer(features, training=False), features)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_that_of_the_features_dropped(rate):
    kept = mask_of(1, np.arange(200), 500, rate)
    # 100,000 draws: the standard deviation is at most 0.0016.
    assert kept.mean() == pytest.approx(1 - rate, abs=0.008)
    # Of each example (500 draws) and of each feature (200 draws): 6 deviations.
    spread = (rate * (1 - rate)) ** 0.5
    assert abs(kept.mean(1) - (1 - rate)).max() < 6 * spread / 500**0.5
    assert abs(kept.mean(0) - (1 - rate)).max() < 6 * spread / 200**0.5


def test_examples_features_steps_and_layers_are_independent():
    kept = mask_of(1, np.arange(64), 4096) * 2.0 - 1
    for other in (
        kept[np.arange(64) - 1],  # The next example.
        np.roll(kept, 1, axis=1),
        mask_of(2, np.arange(64), 4096) * 2.0 - 1,
        mask_of(1, np.arange(64), 4096, seed=4) * 2.0 - 1,
    ):
        # The mean of 262,144 products of -1 and 1: a standard deviation of 0.002.
        assert abs((kept * other).mean()) < 0.01


def test_the_mask_of_an_example_depends_on_nothing_else():
    examples = np.array([7, 10**12 + 1, 0, 3])
    whole = mask_of(5, examples)
    np.testing.assert_array_equal(mask_of(5, examples[::-1]), whole[::-1])
    for index in range(4):
        np.testing.assert_array_equal(mask_of(5, examples[[index]]), whole[[index]])


def test_the_gradient_passes_the_features_kept_in_their_dtype():
    layer = Dropout(0.5, 3, "dropout")
    features = tf.ones([2, 8], tf.bfloat16)
    key, examples = tf.constant(9, tf.int64), tf.constant([4, 5], tf.int64)
    with tf.GradientTape() as tape, dropout.keyed(key, examples):
        tape.watch(features)
        outputs = layer(features, training=True)
    assert outputs.dtype == tf.bfloat16
    gradient = tape.gradient(outputs, features)
    np.testing.assert_array_equal(gradient, 2.0 * mask_of(9, [4, 5], 8))


def test_a_step_drops_by_seed_step_and_example_also_in_micro_batches(
    make_config, monkeypatch
):
    monkeypatch.setattr(alexnet, "DENSE_UNITS", 64)  # Most of its time otherwise.
    settings = StepSettings(0.1, 0.9, 0.9, 0.0)

    state = TrainState(make_config(model="alexnet", global_batch_size=4, image_size=32))
    draw = np.random.default_rng(1).normal
    initial = [draw(0, 0.03, one.shape) for one in state.trainable_variables]
    exchange = GradientExchange(Communicator(ProcessInfo()).collectives, state.names)

    def results(seed: int, step: int, num_parts: int) -> tuple[float, np.ndarray]:
        for variable, value in zip(state.trainable_variables, initial, strict=True):
            variable.assign(value)
        state.optimizer.reset()
        state.config = dataclasses.replace(
            state.config, accumulation_steps=num_parts, seed=seed
        )
        train_step = TrainStep(state, state.config.phases[0], exchange)
        parts = parts_of(batch(4), num_parts)
        result = in_parts(train_step, parts, settings, step)
        return result.loss, state.model.get_layer("dense2").kernel.numpy()

    loss, kernel = results(seed=3, step=5, num_parts=1)
    same_loss, same_kernel = results(seed=3, step=5, num_parts=2)
    assert same_loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(same_kernel, kernel, rtol=0, atol=1e-6)
    for seed, step in ((3, 6), (4, 5)):
        assert results(seed, step, 1)[0] != pytest.approx(loss, rel=1e-4)
