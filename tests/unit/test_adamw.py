import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet.config import explain
from resnet.config.config import Derived
from resnet.config.recipes import imagenette
from resnet.config.resolve import resolve
from resnet.optim.train_state import TrainState
from tests.unit.one_optimizer import make, settings, slots

# Some roundings of a float32 a step, over a few steps.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def resolved(recipe=imagenette.IMAGENETTE, **given):
    overrides = {"optimizer": "adamw", **given}
    return resolve(recipe, overrides, recipe.num_train_examples, ("a", "b"))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_several_steps_are_those_of_the_formula(in_graph, nesterov):
    """The momentum changes, so the corrections are not 1 - momentum^t."""
    generator = np.random.default_rng(0)
    decay, beta2, epsilon = 0.1, 0.99, 1e-3
    decays, factors = [True, False, True], (1.0, 1.0, 3.0)
    starts = generator.normal(size=(3, 5)).astype(np.float32)
    variables = [tf.Variable(one) for one in starts]
    optimizer = make(
        "adamw", variables, decays, nesterov, adam_beta2=beta2, adam_epsilon=epsilon
    )
    apply = tf.function(optimizer.apply) if in_graph else optimizer.apply
    weights = starts.astype(np.float64)
    means, squares, weight, square_weight = 0.0, 0.0, 0.0, 0.0
    for rate, momentum in ((0.1, 0.9), (0.3, 0.8), (0.2, 0.95), (0.0, 0.9)):
        gradients = generator.normal(size=(3, 5)).astype(np.float32)
        apply(list(gradients), settings(rate, momentum, decay), factors)
        means = momentum * means + (1 - momentum) * gradients
        weight = momentum * weight + 1 - momentum
        squares = beta2 * squares + (1 - beta2) * gradients.astype(np.float64) ** 2
        square_weight = beta2 * square_weight + 1 - beta2
        mean = means / weight
        if nesterov:
            mean = momentum * means + (1 - momentum) * gradients
            mean = mean / (momentum * weight + 1 - momentum)
        steps = mean / (np.sqrt(squares / square_weight) + epsilon)
        for i, factor in enumerate(factors):
            weights[i] *= 1 - rate * factor * decay * decays[i]
            weights[i] -= rate * factor * steps[i]
        for ours, expected in zip(variables, weights, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)
    for ours, expected in zip(slots(optimizer), means, strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)
    for ours, expected in zip(slots(optimizer, "square"), squares, strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)


def test_the_updates_are_those_of_keras():
    """With epsilon near 0, since Keras adds it before the correction of the bias."""
    generator = np.random.default_rng(0)
    start = generator.normal(size=7).astype(np.float32)
    ours, theirs = tf.Variable(start), keras.Variable(start)
    optimizer = make("adamw", [ours], [True], False, adam_epsilon=1e-20)
    of_keras = keras.optimizers.AdamW(0.01, weight_decay=0.5, epsilon=1e-20)
    for _ in range(20):
        gradient = tf.constant(generator.normal(size=7), tf.float32)
        optimizer.apply([gradient], settings(0.01, 0.9, 0.5))
        of_keras.apply([gradient], [theirs])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4)


def test_a_first_step_has_the_length_of_the_learning_rate():
    variable = tf.Variable([0.0, 0.0])
    make("adamw", [variable], [True]).apply(
        [tf.constant([1e-3, -7.0])], settings(0.5, 0.9, 0)
    )
    np.testing.assert_allclose(variable.numpy(), [-0.5, 0.5], rtol=1e-4)


def test_what_was_frozen_begins_with_a_step_of_full_length():
    frozen, other = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = make("adamw", [frozen, other], [True, True])
    for _ in range(3):
        optimizer.apply([tf.ones([1])] * 2, settings(0.5, 0.9, 0.1), (0.0, 1.0))
    assert frozen.numpy() == [1.0]
    assert not slots(optimizer)[0].numpy().any()
    assert not slots(optimizer, "square")[0].numpy().any()
    optimizer.apply([tf.ones([1])] * 2, settings(0.5, 0.9, 0.0), (1.0, 1.0))
    np.testing.assert_allclose(frozen.numpy(), [0.5], rtol=1e-5)


def test_reset_forgets_all_gradients():
    variable = tf.Variable([0.0])
    optimizer = make("adamw", [variable], [True])
    for gradient in (3.0, -1.0):
        optimizer.apply([tf.constant([gradient])], settings(0.5, 0.9, 0.0))
    optimizer.reset()
    variable.assign([0.0])
    optimizer.apply([tf.constant([2.0])], settings(0.5, 0.9, 0.0))
    np.testing.assert_allclose(variable.numpy(), [-0.5], rtol=1e-5)


def test_a_checkpoint_holds_all_of_its_state(make_config):
    config = make_config(model="resnet8", optimizer="adamw", weight_decay=0.1)
    state = TrainState(config)
    assert state.weight_penalty() == 0.0
    momentum = TrainState(dataclasses.replace(config, optimizer="momentum"))
    assert state.optimizer.decays == momentum.optimizer.decays
    stored = state.tensors()
    names = {name for name in stored if name.startswith("square/")}
    assert names == {f"square/{name}" for name in state.names}
    assert stored["adam/bias_corrections"].shape == [len(state.names), 2]


def test_the_plan_names_its_settings():
    config = resolved(adam_beta2=0.99)
    text = explain.describe_run(imagenette.IMAGENETTE, {}, Derived(config, 2))
    expected = "optimizer AdamW (beta2 0.99, epsilon 1e-08), momentum with Nesterov"
    assert expected in " ".join(text.split())
