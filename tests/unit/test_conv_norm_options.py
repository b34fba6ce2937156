"""ConvNorm with another epsilon, with a fixed gamma and with a bias.

Each combination is compared with formulas in NumPy and with Keras' own layers, for the
compiled ops and for the reference implementation of stock ops.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.models import layers

MOMENTUM = 0.8
EPSILON = 1e-3  # Other than the default.
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
        monkeypatch.setattr(native, "convolutions", lambda dtype: None)
    return request.param


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def make_layer(
    kernel_size: int,
    channels: int,
    filters: int,
    combination: tuple[bool, bool],
    **options,
) -> layers.ConvNorm:
    """Returns a layer with random values in all of its variables."""
    fixed_gamma, use_bias = combination
    layer = layers.ConvNorm(
        filters,
        kernel_size,
        1,
        MOMENTUM,
        0,
        "conv",
        epsilon=EPSILON,
        fixed_gamma=fixed_gamma,
        use_bias=use_bias,
        **options,
    )
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


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_the_variables_are_those_of_the_options(combination):
    layer = make_layer(3, 4, 8, combination)
    fixed_gamma, use_bias = combination
    expected = ["kernel"] + ["bias"] * use_bias + ["gamma"] * (not fixed_gamma)
    assert [one.name for one in layer.trainable_variables] == [*expected, "beta"]
    assert [one.name for one in layer.non_trainable_variables] == [
        "moving_mean",
        "moving_variance",
    ]


def test_the_bias_is_zero_at_first():
    layer = layers.ConvNorm(4, 1, 1, MOMENTUM, 0, "conv", use_bias=True)
    layer.build((None, 2, 2, 3))
    np.testing.assert_array_equal(layer.bias, np.zeros(4))


def test_a_gamma_that_is_fixed_and_zero_is_refused():
    with pytest.raises(ValueError, match="zero_gamma and fixed_gamma for layer conv"):
        layers.ConvNorm(4, 1, 1, MOMENTUM, 0, "conv", zero_gamma=True, fixed_gamma=True)


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


def keras_layers(
    layer: layers.ConvNorm, dtype: str
) -> tuple[keras.layers.Conv2D, keras.layers.BatchNormalization]:
    """Returns Keras' own convolution and normalization with the same values."""
    policy = "float32" if dtype == "float32" else "mixed_bfloat16"
    conv = keras.layers.Conv2D(
        layer.filters,
        layer.kernel_size,
        padding="same",
        use_bias=layer.use_bias,
        dtype=policy,
    )
    norm = keras.layers.BatchNormalization(
        momentum=MOMENTUM,
        epsilon=EPSILON,
        scale=not layer.fixed_gamma,
        dtype=policy,
    )
    conv.build((None, None, None, layer.kernel.shape[2]))
    norm.build((None, None, None, layer.filters))
    values = {one.name: one for one in layer.variables}
    for variable in (*conv.variables, *norm.variables):
        variable.assign(values[variable.name])
    return conv, norm


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.usefixtures("ops")
def test_the_results_are_those_of_keras(combination, training, dtype):
    layer = make_layer(3, 8, 16, combination, relu=False)
    conv, norm = keras_layers(layer, dtype)
    x = tf.cast(normal(3, 6, 5, 8, seed=1), dtype)
    weights = normal(3, 6, 5, 16, seed=2)
    start = {one.name: one.numpy() for one in layer.non_trainable_variables}
    found = []
    for call, variables in (
        (layer, layer.trainable_variables),
        (
            lambda x, training: norm(conv(x), training=training),
            [*conv.trainable_variables, *norm.trainable_variables],
        ),
    ):
        sources = {"x": x, **{one.name: one.value for one in variables}}
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x, training=training)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * weights)
        assert y.dtype == x.dtype
        found.append({"y": y, **tape.gradient(loss, sources)})
    ours, expected = found
    assert ours.keys() == expected.keys()
    for name in ours:
        if name == "bias" and training:
            # Zero but for rounding: the normalization subtracts the bias again.
            size = np.abs(weights).sum() / np.sqrt(EPSILON)
            limit = size * (1e-6 if dtype == "float32" else 1e-2)
            assert np.abs(tf.cast(ours[name], tf.float32)).max() < limit
        else:
            assert_near(ours[name], expected[name], TOLERANCE[dtype], name)
    # Keras moves its average towards the biased variance of 90 values, we to 90 / 89 of
    # it.
    ratios = {"moving_mean": 1, "moving_variance": 90 / 89}
    for variable in norm.non_trainable_variables:
        own = {one.name: one for one in layer.variables}[variable.name].numpy()
        before = start[variable.name]
        change = (variable.numpy() - MOMENTUM * before) * ratios[variable.name]
        if not training:
            np.testing.assert_array_equal(own, before)
        else:
            tolerance = TOLERANCE[dtype]
            assert_near(own - MOMENTUM * before, change, tolerance, variable.name)


def test_a_layer_with_a_bias_is_rematerialized_to_the_same_gradients():
    first = make_layer(3, 8, 16, (True, True))
    second = make_layer(3, 16, 8, (True, True))
    x, weights = tf.constant(normal(2, 6, 5, 8, seed=1)), normal(2, 6, 5, 8, seed=2)

    def gradients() -> list[tf.Tensor]:
        variables = [*first.trainable_variables, *second.trainable_variables]
        with tf.GradientTape() as tape:
            y = second(first(x, training=True), training=True)
            loss = tf.reduce_sum(y * weights)
        return tape.gradient(loss, [one.value for one in variables])

    for ours, expected in zip(tf.function(gradients)(), gradients(), strict=True):
        # A graph may sum the bias' gradient in another order.
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-4)
