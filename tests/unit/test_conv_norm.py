"""ConvNorm and its variants against formulas in NumPy and Keras' own layers.

For the compiled ops and for the reference implementation of stock ops.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.models import layers
from resnet.models.layers import PooledConvNorm, normalization
from resnet.models.layers.normalization import collected
from resnet.models.options import NormOptions
from tests.drawn import normal
from tests.unit.slow_convolution import slow_convolution

MOMENTUM = 0.8
EPSILON = 1e-3  # Other than the default.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # Sums of up to some hundred float32 products.
# (fixed_gamma, use_bias)
COMBINATIONS = list(itertools.product([False, True], [False, True]))
# Norms of differences relative to the norm of what is expected. float32: sums of up to
# some hundred products. bfloat16 rounds each of the results in between to 2**-9, and
# other places may be on the other side of ReLU's kink.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-2}


@pytest.fixture(params=["compiled", "stock"])
def ops(request, monkeypatch) -> str:
    """Runs a test with the compiled ops, if this CPU can, and with stock ops."""
    if request.param == "stock":
        monkeypatch.setattr(native, "fast_ops", lambda dtype: None)
    return request.param


def make_layer(
    kernel_size: int,
    channels: int,
    filters: int,
    combination: tuple[bool, bool],
    **options,
) -> layers.ConvNorm:
    """Returns a layer with random values in all of its variables."""
    fixed_gamma, use_bias = combination
    norm = NormOptions(
        momentum=MOMENTUM,
        epsilon=EPSILON,
        fixed_gamma=fixed_gamma,
        use_bias=use_bias,
        **options,
    )
    layer = layers.ConvNorm(filters, kernel_size, 1, 0, "conv", norm)
    layer.build((None, 6, 5, channels))
    for seed, variable in enumerate(layer.variables, start=10):
        if variable.name == "moving_variance":
            variable.assign(np.abs(normal(filters, seed=seed)) / 100)
        elif variable.name != "kernel":
            variable.assign(normal(filters, seed=seed))
    return layer


def value_of(layer: layers.ConvNorm, name: str, default: float) -> np.ndarray:
    """Returns the value of a variable in float64, or the default without it."""
    for variable in layer.variables:
        if variable.name == name:
            return variable.numpy().astype(np.float64)
    return np.full(layer.filters, default)


def assert_near(ours, expected, tolerance: float, message: str = "") -> None:
    ours, expected = (tf.cast(one, tf.float64).numpy() for one in (ours, expected))
    assert ours.shape == expected.shape
    difference = np.linalg.norm(ours - expected)
    assert difference <= tolerance * np.linalg.norm(expected), message


def test_a_gamma_that_is_fixed_and_zero_is_refused():
    with pytest.raises(ValueError, match="zero_gamma and fixed_gamma"):
        NormOptions(zero_gamma=True, fixed_gamma=True)


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.usefixtures("ops")
def test_training_is_that_of_the_formula(combination):
    layer = make_layer(1, 8, 16, combination)
    # Of a variance that isn't large beside epsilon.
    x = 0.05 * normal(3, 6, 5, 8, seed=1)
    residual, weights = normal(3, 6, 5, 16, seed=2), normal(3, 6, 5, 16, seed=3)
    old_mean = value_of(layer, "moving_mean", 0)
    old_variance = value_of(layer, "moving_variance", 0)
    inputs = [tf.constant(x), tf.constant(residual)]
    trained = {one.name: one.value for one in layer.trainable_variables}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = layer(*inputs, training=True)
        loss = tf.reduce_sum(y * weights)
    gradients = tape.gradient(loss, {"x": inputs[0], "residual": inputs[1], **trained})

    kernel = layer.kernel.numpy().astype(np.float64)[0, 0]
    gamma, beta = value_of(layer, "gamma", 1), value_of(layer, "beta", 0)
    rows = x.reshape(-1, 8).astype(np.float64)
    z = rows @ kernel + value_of(layer, "bias", 0)
    count, mean, variance = len(z), z.mean(0), z.var(0)
    scale = 1 / np.sqrt(variance + EPSILON)
    xhat = (z - mean) * scale
    expected = np.maximum(gamma * xhat + beta + residual.reshape(-1, 16), 0)
    g = weights.reshape(-1, 16) * (expected > 0)
    dgamma, dbeta = (g * xhat).sum(0), g.sum(0)
    dz = gamma * scale * (g - dbeta / count - xhat * dgamma / count)
    expected_gradients = {
        "x": (dz @ kernel.T).reshape(x.shape),
        "residual": g.reshape(residual.shape),
        "kernel": (rows.T @ dz)[None, None],
        "gamma": dgamma,
        "beta": dbeta,
    }
    assert_near(y, expected.reshape(y.shape), TOLERANCE["float32"])
    for name, gradient in gradients.items():
        if name == "bias":  # The normalization subtracts it again.
            assert np.abs(gradient).max() < 1e-4 * np.abs(dz).sum(0).max()
        else:
            assert_near(gradient, expected_gradients[name], 1e-4, name)
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), MOMENTUM * old_mean + 0.2 * mean, rtol=1e-4
    )
    np.testing.assert_allclose(
        layer.moving_variance.numpy(),
        MOMENTUM * old_variance + 0.2 * variance * count / (count - 1),
        rtol=1e-4,
    )


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.usefixtures("ops")
def test_inference_is_that_of_the_formula(combination):
    layer = make_layer(1, 8, 16, combination)
    x, residual = normal(3, 6, 5, 8, seed=1), normal(3, 6, 5, 16, seed=2)
    y = layer(tf.constant(x), tf.constant(residual), training=False)
    z = x @ layer.kernel.numpy().astype(np.float64)[0, 0] + value_of(layer, "bias", 0)
    scale = 1 / np.sqrt(value_of(layer, "moving_variance", 1) + EPSILON)
    normalized = (z - value_of(layer, "moving_mean", 0)) * scale
    y_hat = value_of(layer, "gamma", 1) * normalized + value_of(layer, "beta", 0)
    assert_near(y, np.maximum(y_hat + residual, 0), TOLERANCE["float32"])


def test_the_kernel_has_the_variance_of_its_inputs():
    layer = layers.ConvNorm(64, 3, 1, 3, "conv", NormOptions())
    layer.build((1, 8, 8, 64))
    kernel = layer.kernel.numpy()
    # Fan-in 3 * 3 * 64 = 576: standard deviation 1 / 24; cut off at two standard
    # deviations of the uncut normal, whose own is greater by 1 / 0.87962566.
    assert kernel.std() == pytest.approx(1 / 24, rel=0.02)  # 36,864 draws.
    assert abs(kernel).max() <= 2 / 24 / 0.87962566 + 1e-6
    assert abs(kernel.mean()) < 0.001
    assert not hasattr(layer, "bias")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("kernel_size", "stride"), [(1, 1), (3, 2), (7, 2)])
def test_it_convolves_before_it_normalizes(kernel_size, stride, training):
    layer = layers.ConvNorm(
        5, kernel_size, stride, 1, "conv", NormOptions(momentum=0.9, relu=False)
    )
    images = normal(2, 7, 8, 3)
    ours = layer(tf.constant(images), training=training)
    assert layer.compute_output_shape((2, 7, 8, 3)) == tuple(ours.shape)
    convolved = slow_convolution(images, layer.kernel.numpy(), stride)
    mean = convolved.mean((0, 1, 2)) if training else np.zeros(5)
    variance = convolved.var((0, 1, 2)) if training else np.ones(5)
    expected = (convolved - mean) / np.sqrt(variance + normalization.EPSILON)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_a_graph_keeps_no_normalized_images_for_its_backward_pass():
    first = layers.ConvNorm(32, 3, 1, 0, "first", NormOptions(momentum=0.9))
    second = layers.ConvNorm(16, 1, 1, 1, "second", NormOptions(momentum=0.9))
    images = tf.constant(normal(2, 5, 5, 8))
    weights = normal(2, 5, 5, 16)

    def kernel_gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = second(first(images, training=True), training=True)
            loss = tf.reduce_sum(outputs * weights)
        return tape.gradient(loss, [first.kernel.value, second.kernel.value])

    kept = kernel_gradients()
    graph = tf.function(kernel_gradients)
    for one, other in zip(graph(), kept, strict=True):
        np.testing.assert_array_equal(one, other)
    types = [one.type for one in graph.get_concrete_function().graph.get_operations()]
    if native.fast_ops(tf.float32) is not None:
        assert types.count("ResnetNormalize") == 1
        order = [
            types.index(f"ResnetConv2D{one}Gradient") for one in ("Kernel", "Input")
        ]
        assert order == sorted(order)


def pooled_layer(**options) -> PooledConvNorm:
    norm = NormOptions(**{"momentum": 0.75, "epsilon": 0.25, **options})
    return PooledConvNorm(4, 3, 1, 1, "conv", norm)


def pooled(images: np.ndarray, layer: PooledConvNorm) -> np.ndarray:
    """The maxima of the convolution's 2x2 windows, in float64."""
    kernel = tf.cast(layer.kernel.value, tf.float64)
    outputs = tf.nn.conv2d(tf.cast(images, tf.float64), kernel, 1, "SAME").numpy()
    count, height, width, filters = outputs.shape
    even = outputs[:, : height // 2 * 2, : width // 2 * 2]
    windows = even.reshape(count, height // 2, 2, width // 2, 2, filters)
    return windows.max((2, 4))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_maxima_of_windows_are_normalized(training, relu):
    layer = pooled_layer(relu=relu, fixed_gamma=True)
    generator = np.random.default_rng(0)
    images = generator.normal(size=(3, 7, 9, 2)).astype(np.float32)
    layer.build(images.shape)
    layer.beta.assign(generator.normal(size=4))
    layer.moving_mean.assign(generator.normal(size=4))
    layer.moving_variance.assign(generator.uniform(0.5, 2, 4))
    values = pooled(images, layer)
    rows = values.reshape(-1, 4)
    mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
    moved = mean, variance
    if training:
        moved = (
            0.75 * mean + 0.25 * rows.mean(0),
            0.75 * variance + 0.25 * rows.var(0, ddof=1),
        )
        mean, variance = rows.mean(0), rows.var(0)
    expected = (values - mean) / np.sqrt(variance + 0.25) + layer.beta.numpy()
    expected = np.maximum(expected, 0) if relu else expected
    outputs = layer(tf.constant(images), training=training)
    assert outputs.shape == (3, 3, 4, 4) == layer.compute_output_shape(images.shape)
    # Sums of 18 products in float32.
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, moved[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, moved[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"fixed_gamma": True, "num_copies": 2}])
def test_what_the_pool_can_not_be_folded_with_is_refused(options):
    with pytest.raises(ValueError, match="expected fixed_gamma and num_copies=1"):
        pooled_layer(**options).build((1, 4, 4, 3))


def average(*values: float) -> keras.Variable:
    return keras.Variable(np.array(values, np.float32), trainable=False)


def network(momentum: float = 0.9) -> keras.Model:
    """Returns two layers of batch normalization, with averages that differ."""
    inputs = keras.Input((4, 4, 3))
    norm = NormOptions(momentum=momentum)
    first = layers.ConvNorm(5, 3, 1, 1, "first", norm)(inputs)
    model = keras.Model(inputs, layers.ConvNorm(2, 1, 1, 2, "second", norm)(first))
    generator = np.random.default_rng(0)
    for variable in model.non_trainable_variables:
        variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    return model


def images() -> tf.Tensor:
    return tf.constant(np.random.default_rng(1).normal(size=(2, 4, 4, 3)), tf.float32)


def averages_of(model: keras.Model) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.non_trainable_variables]


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
        np.testing.assert_allclose(0.75 * old + 0.25 * value, new, rtol=1e-6, atol=1e-6)


def test_layers_update_their_averages_again_after_the_block():
    variable = average(0.0)
    with pytest.raises(KeyError), collected():
        raise KeyError
    normalization.update_average(variable, tf.constant([1.0]), 0.5)
    assert variable.numpy() == [0.5]
