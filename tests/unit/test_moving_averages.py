"""Who updates the moving averages of batch normalization, and by what."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet.models import layers
from resnet.models.layers import normalization
from resnet.models.layers.normalization import collected

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # A few roundings of a float32.


def average(*values: float) -> keras.Variable:
    return keras.Variable(np.array(values, np.float32), trainable=False)


def network(momentum: float = 0.9) -> keras.Model:
    """Returns two layers of batch normalization, with averages that differ."""
    inputs = keras.Input((4, 4, 3))
    first = layers.ConvNorm(5, 3, 1, momentum, 1, "first")(inputs)
    model = keras.Model(inputs, layers.ConvNorm(2, 1, 1, momentum, 2, "second")(first))
    generator = np.random.default_rng(0)
    for variable in model.non_trainable_variables:
        variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    return model


def images() -> tf.Tensor:
    return tf.constant(np.random.default_rng(1).normal(size=(2, 4, 4, 3)), tf.float32)


def averages_of(model: keras.Model) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.non_trainable_variables]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.75])
def test_an_update_is_that_of_the_formula(momentum, in_graph):
    variable = average(1.0, -2.0)

    def update() -> None:
        normalization.update_average(variable, tf.constant([3.0, 4.0]), momentum)

    (tf.function(update) if in_graph else update)()
    expected = momentum * np.array([1, -2]) + (1 - momentum) * np.array([3, 4])
    np.testing.assert_allclose(variable.numpy(), expected, **CLOSE)


@pytest.mark.parametrize("in_graph", [False, True])
def test_collected_statistics_are_those_of_the_update_left_out(in_graph):
    model, other = network(0.75), network(0.75)
    before = averages_of(model)

    def call(batch: tf.Tensor) -> list[tf.Tensor]:
        with collected() as statistics:
            model(batch, training=True)
        # So that each is found, by its variable as the server updates it.
        by_average = {id(one.average): one for one in statistics}
        assert len(by_average) == len(statistics) == 4
        assert {one.step_size for one in statistics} == {0.25}
        return [by_average[id(one)].value for one in model.non_trainable_variables]

    values = (tf.function(call) if in_graph else call)(images())
    for ours, old in zip(averages_of(model), before, strict=True):
        np.testing.assert_array_equal(ours, old)
    other(images(), training=True)
    for value, old, new in zip(values, before, averages_of(other), strict=True):
        assert np.abs(new - old).min() > 1e-4
        np.testing.assert_allclose(0.75 * old + 0.25 * value, new, **CLOSE)


def test_outputs_and_gradients_are_the_same_while_statistics_are_collected():
    model, weights = network(), tf.constant(np.arange(64.0).reshape(2, 4, 4, 2))
    found = []
    for is_collected in (True, False):
        kernels = [one.value for one in model.trainable_variables]
        with tf.GradientTape() as tape:
            if is_collected:
                with collected():
                    outputs = model(images(), training=True)
            else:
                outputs = model(images(), training=True)
            loss = tf.reduce_sum(outputs * tf.cast(weights, tf.float32))
        found.append([outputs, *tape.gradient(loss, kernels)])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_inference_has_no_statistics():
    model = network()
    with collected() as statistics:
        model(images(), training=False)
    assert statistics == []


def test_layers_update_their_averages_again_after_the_block():
    variable = average(0.0)
    with pytest.raises(KeyError), collected():
        raise KeyError
    normalization.update_average(variable, tf.constant([1.0]), 0.5)
    assert variable.numpy() == [0.5]


def test_statistics_of_another_thread_are_not_collected():
    variable = average(0.0)
    thread = threading.Thread(
        target=normalization.update_average, args=(variable, tf.constant([1.0]), 0.5)
    )
    with collected() as statistics:
        thread.start()
        thread.join()
    assert statistics == []
    assert variable.numpy() == [0.5]
