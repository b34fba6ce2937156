import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.models import layers
from tests.unit.slow_convolution import slow_convolution

EPSILON = 1e-5
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # Sums of up to some hundred float32 products.


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_the_kernel_has_the_variance_of_its_inputs():
    layer = layers.ConvNorm(64, 3, 1, batch_norm_momentum=0.9, seed=3, name="conv")
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
    layer = layers.ConvNorm(5, kernel_size, stride, 0.9, 1, "conv", relu=False)
    images = normal(2, 7, 8, 3)
    ours = layer(tf.constant(images), training=training)
    assert layer.compute_output_shape((2, 7, 8, 3)) == tuple(ours.shape)
    convolved = slow_convolution(images, layer.kernel.numpy(), stride)
    mean = convolved.mean((0, 1, 2)) if training else np.zeros(5)
    variance = convolved.var((0, 1, 2)) if training else np.ones(5)
    expected = slow_norm(convolved, np.ones(5), np.zeros(5), mean, variance)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_the_gradients_of_copies_are_summed(training):
    layer = norm_layer(3, relu=True, num_copies=2)
    single = norm_layer(3, relu=True)
    inputs = tf.constant(normal(2, 5, 4, 3))
    residual = tf.constant(normal(2, 5, 4, 3, seed=3))
    weights = [tf.constant(normal(2, 5, 4, 3, seed=seed)) for seed in (1, 2)]
    found = []
    for one in (layer, single):
        variables = [variable.value for variable in one.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch([inputs, residual])
            outputs = one(inputs, residual, training=training)
            copies = outputs if one is layer else [outputs, outputs]
            loss = tf.add_n(
                [tf.reduce_sum(a * b) for a, b in zip(copies, weights, strict=True)]
            )
        found.append(tape.gradient(loss, [inputs, residual, *variables]))
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, **CLOSE)


def identity_layer(channels: int, **options) -> layers.ConvNorm:
    """A layer whose convolution changes nothing."""
    momentum = options.pop("momentum", 0.9)
    layer = layers.ConvNorm(channels, 1, 1, momentum, 0, "norm", **options)
    layer.build((None, 4, 4, channels))
    layer.kernel.assign(np.eye(channels, dtype=np.float32)[None, None])
    return layer


def norm_layer(channels: int, **options) -> layers.ConvNorm:
    """The same, with other values than the first in all of its variables."""
    layer = identity_layer(channels, **options)
    layer.gamma.assign(normal(channels, seed=11))
    layer.beta.assign(normal(channels, seed=12))
    layer.moving_mean.assign(normal(channels, seed=13))
    layer.moving_variance.assign(np.abs(normal(channels, seed=14)) + 0.5)
    return layer


def slow_norm(images, gamma, beta, mean, variance) -> np.ndarray:
    images = images.astype(np.float64)
    return gamma * (images - mean) / np.sqrt(variance + EPSILON) + beta


def test_normalization_starts_as_the_identity_but_for_epsilon():
    layer = identity_layer(3, relu=False)
    images = normal(2, 4, 4, 3)
    ours = layer(tf.constant(images))
    np.testing.assert_allclose(ours, images / np.sqrt(1 + EPSILON), **CLOSE)
    assert [one.name for one in layer.trainable_variables] == [
        "kernel",
        "gamma",
        "beta",
    ]
    assert [one.name for one in layer.non_trainable_variables] == [
        "moving_mean",
        "moving_variance",
    ]


def test_a_last_normalization_starts_at_its_residual():
    layer = identity_layer(3, zero_gamma=True)
    residual = normal(2, 4, 4, 3, seed=5)
    ours = layer(tf.constant(normal(2, 4, 4, 3)), tf.constant(residual))
    np.testing.assert_array_equal(ours, np.maximum(residual, 0))


def test_inference_normalizes_by_the_averages_and_leaves_them():
    layer = norm_layer(3, relu=False)
    before = [one.numpy() for one in layer.variables]
    images = normal(2, 5, 4, 3)
    ours = layer(tf.constant(images), training=False)
    np.testing.assert_allclose(ours, slow_norm(images, *before[1:]), **CLOSE)
    for variable, value in zip(layer.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.95])
def test_training_normalizes_by_the_batch_and_moves_the_averages(momentum):
    layer = norm_layer(3, relu=False, momentum=momentum)
    gamma, beta, old_mean, old_variance = (one.numpy() for one in layer.variables[1:])
    images = 3 + 2 * normal(2, 5, 4, 3)
    ours = layer(tf.constant(images), training=True)
    mean, variance = images.mean((0, 1, 2)), images.var((0, 1, 2))
    np.testing.assert_allclose(
        ours, slow_norm(images, gamma, beta, mean, variance), **CLOSE
    )
    unbiased = variance * 40 / 39  # 2 * 5 * 4 values of each channel.
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), momentum * old_mean + (1 - momentum) * mean, **CLOSE
    )
    np.testing.assert_allclose(
        layer.moving_variance.numpy(),
        momentum * old_variance + (1 - momentum) * unbiased,
        **CLOSE,
    )


def test_training_moves_the_averages_once_a_call_inside_a_graph_too():
    layer = norm_layer(2, relu=False)
    images = normal(4, 3, 3, 2)
    expected = layer.moving_mean.numpy()

    @tf.function
    def call(batch: tf.Tensor) -> tf.Tensor:
        return layer(batch, training=True)

    for _ in range(3):
        call(tf.constant(images))
        expected = 0.9 * expected + 0.1 * images.mean((0, 1, 2))
    np.testing.assert_allclose(layer.moving_mean.numpy(), expected, **CLOSE)


def test_the_backward_pass_is_that_of_the_formula():
    layer = norm_layer(3, relu=False)
    gamma = layer.gamma.numpy().astype(np.float64)
    images, weights = normal(2, 5, 4, 3), normal(2, 5, 4, 3, seed=1)
    inputs = tf.constant(images)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(layer(inputs, training=True) * weights)
    of_images, of_gamma, of_beta = tape.gradient(
        loss, [inputs, layer.gamma.value, layer.beta.value]
    )
    # Ioffe and Szegedy 2015, section 3, with the sums over all m places of a channel.
    axes = (0, 1, 2)
    m = images[..., 0].size
    scale = 1 / np.sqrt(images.astype(np.float64).var(axes) + EPSILON)
    normalized = (images - images.mean(axes)) * scale
    np.testing.assert_allclose(of_beta, weights.sum(axes), **CLOSE)
    np.testing.assert_allclose(of_gamma, (weights * normalized).sum(axes), **CLOSE)
    expected = (
        gamma
        * scale
        * (
            weights
            - weights.sum(axes) / m
            - normalized * (weights * normalized).sum(axes) / m
        )
    )
    np.testing.assert_allclose(of_images, expected, **CLOSE)


def test_with_frozen_averages_the_gradient_is_the_scale():
    layer = norm_layer(3, relu=False)
    inputs = tf.constant(normal(2, 5, 4, 3))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(layer(inputs, training=False))
    scale = layer.gamma.numpy() / np.sqrt(layer.moving_variance.numpy() + EPSILON)
    expected = np.broadcast_to(scale, inputs.shape)
    np.testing.assert_allclose(tape.gradient(loss, inputs), expected, **CLOSE)


@pytest.mark.parametrize("training", [False, True])
def test_the_residual_is_added_before_the_relu(training):
    layer = norm_layer(3, relu=True)
    images, residual = normal(2, 4, 4, 3), normal(2, 4, 4, 3, seed=9)
    gamma, beta, mean, variance = (one.numpy() for one in layer.variables[1:])
    if training:
        mean, variance = images.mean((0, 1, 2)), images.var((0, 1, 2))
    ours = layer(tf.constant(images), tf.constant(residual), training=training)
    normalized = slow_norm(images, gamma, beta, mean, variance)
    np.testing.assert_allclose(ours, np.maximum(normalized + residual, 0), **CLOSE)
    plain = layer(tf.constant(images), training=False)
    assert plain.numpy().min() == 0


@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize("size", [(4, 4), (5, 6), (1, 3)])
def test_max_pooling_takes_every_second_window_of_three(size, is_symmetric):
    images = normal(2, *size, 3)
    if is_symmetric:  # Padded with zeros.
        images = np.maximum(images, 0)
    pool = layers.MaxPool(3, 2, name="pool", is_symmetric=is_symmetric)
    ours = pool(tf.constant(images)).numpy()
    height, width = (-(-side // 2) for side in size)
    # "SAME": of the padding that is needed the smaller half lies before.
    before = [max((-(-side // 2) - 1) * 2 + 3 - side, 0) // 2 for side in size]
    if is_symmetric:
        before = [1, 1]
    expected = np.empty((2, height, width, 3), np.float32)
    for y in range(height):
        for x in range(width):
            top, left = 2 * y - before[0], 2 * x - before[1]
            window = images[:, max(top, 0) : top + 3, max(left, 0) : left + 3]
            expected[:, y, x] = window.max((1, 2))
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("size", [(4, 4), (5, 6), (7, 3), (1, 1)])
def test_average_pooling_takes_the_mean_of_the_places_that_there_are(size, dtype):
    images = tf.cast(normal(2, *size, 3), dtype)
    height, width = (-(-side // 2) for side in size)
    weights = tf.cast(normal(2, height, width, 3, seed=1), dtype)
    layer = layers.AvgPool(name="pool")

    @tf.function
    def pooled_and_gradient() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(images)
            pooled = layer(images)
        return pooled, tape.gradient(pooled, images, weights)

    ours, gradient = pooled_and_gradient()
    assert ours.dtype == gradient.dtype == dtype
    images, weights = (tf.cast(one, tf.float64).numpy() for one in (images, weights))
    expected = np.empty((2, height, width, 3))
    expected_gradient = np.empty((2, *size, 3))
    for y in range(height):
        for x in range(width):
            places = np.s_[:, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
            window = images[places]
            expected[:, y, x] = window.mean((1, 2))
            num_places = window[0, ..., 0].size
            expected_gradient[places] = weights[:, y, x][:, None, None] / num_places
    # Sums of four: bfloat16 rounds the mean to 8 bits, or each sum where oneDNN is off.
    close = CLOSE if dtype == tf.float32 else {"rtol": 2**-8, "atol": 2**-7}
    np.testing.assert_allclose(tf.cast(ours, tf.float64), expected, **close)
    # A half and a quarter are exact.
    np.testing.assert_array_equal(tf.cast(gradient, tf.float64), expected_gradient)


@pytest.mark.parametrize("size", [(1, 1), (4, 4), (5, 3)])
def test_the_pool_of_all_places_takes_their_maximum(size):
    images = normal(2, *size, 3)
    ours = layers.GlobalMaxPool(name="pool")(tf.constant(images))
    np.testing.assert_array_equal(ours, images.max((1, 2), keepdims=True))


def test_the_classifier_is_a_mean_and_a_matrix():
    layer = layers.Classifier(4, seed=2, name="classifier")
    images = normal(3, 2, 5, 6)
    first = layer(tf.constant(images))
    kernel = layer.kernel.numpy()
    np.testing.assert_allclose(first, images.mean((1, 2)) @ kernel, **CLOSE)
    bias = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    layer.bias.assign(bias)
    np.testing.assert_allclose(
        layer(tf.constant(images)), images.mean((1, 2)) @ kernel + bias, **CLOSE
    )


def test_the_classifier_starts_with_small_weights():
    layer = layers.Classifier(1000, seed=2, name="classifier")
    layer.build((None, 7, 7, 64))
    # 64,000 draws: 0.3 % is the standard deviation of their standard deviation.
    assert layer.kernel.numpy().std() == pytest.approx(0.01, rel=0.02)
    assert not layer.bias.numpy().any()


def test_layers_compute_in_bfloat16_and_keep_float32():
    images = tf.cast(normal(2, 6, 6, 8), tf.bfloat16)
    norm = layers.ConvNorm(4, 3, 1, 0.9, 0, "conv")
    classifier = layers.Classifier(3, seed=0, name="classifier")
    normalized = norm(images, tf.ones([2, 6, 6, 4], tf.bfloat16), training=True)
    pooled = layers.MaxPool(3, 2, name="pool")(normalized)
    logits = classifier(pooled)
    assert [x.dtype for x in (normalized, pooled)] == [tf.bfloat16] * 2
    assert logits.dtype == tf.float32
    for layer in (norm, classifier):
        assert {variable.dtype for variable in layer.variables} == {"float32"}
    assert layers.Cast("bfloat16", name="cast")(tf.ones([1])).dtype == tf.bfloat16


def test_a_graph_keeps_no_normalized_images_for_its_backward_pass():
    first = layers.ConvNorm(32, 3, 1, 0.9, 0, "first")
    second = layers.ConvNorm(16, 1, 1, 0.9, 1, "second")
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
