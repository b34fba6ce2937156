import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models

# Name: (filters in, filters out), each of a 3x3 convolution.
CONVOLUTIONS = {
    "prep": (3, 64),
    "layer1": (64, 128),
    "layer1_residual_1": (128, 128),
    "layer1_residual_2": (128, 128),
    "layer2": (128, 256),
    "layer3": (256, 512),
    "layer3_residual_1": (512, 512),
    "layer3_residual_2": (512, 512),
}
CLASSIFIER = "classifier/kernel"


@functools.cache
def new() -> keras.Model:
    """Returns a network as it starts, which is shared and not to be changed."""
    return models.build("resnet9", 10, 32, seed=1)


@functools.cache
def build(image_size: int = 32, **given) -> keras.Model:
    """A network whose normalizations have values that no wrong wiring survives.

    It is shared: its moving averages move when it is called in training.
    """
    model = models.build("resnet9", 10, image_size, **given)
    generator = np.random.default_rng(5)
    for one in model.variables:
        name = one.path.rpartition("/")[2]
        if name in ("gamma", "moving_variance"):
            one.assign(generator.uniform(0.5, 1.0, one.shape))
        elif name in ("beta", "moving_mean"):
            one.assign(generator.normal(0, 0.1, one.shape))
    return model


def random_images(count: int, side: int = 32) -> tf.Tensor:
    generator = np.random.default_rng(1)
    return tf.constant(generator.normal(size=(count, side, side, 3)), tf.float32)


def reference(
    values: dict[str, tf.Tensor], images: tf.Tensor, training: bool
) -> tf.Tensor:
    """The network of the paper for 32 pixels, as plain operations in float64."""

    def conv(x: tf.Tensor, name: str) -> tf.Tensor:
        x = tf.nn.conv2d(x, values[f"{name}/kernel"], 1, "SAME")
        mean, variance = (
            tf.nn.moments(x, [0, 1, 2])
            if training
            else (values[f"{name}/moving_mean"], values[f"{name}/moving_variance"])
        )
        scale = values[f"{name}/gamma"] / tf.sqrt(variance + 1e-5)
        return tf.nn.relu((x - mean) * scale + values[f"{name}/beta"])

    def pool(x: tf.Tensor, size: int) -> tf.Tensor:
        return tf.nn.max_pool2d(x, size, size, "VALID")

    x = conv(tf.cast(images, tf.float64), "prep")
    x = pool(conv(x, "layer1"), 2)
    x += conv(conv(x, "layer1_residual_1"), "layer1_residual_2")
    x = pool(conv(x, "layer2"), 2)
    x = pool(conv(x, "layer3"), 2)
    x += conv(conv(x, "layer3_residual_1"), "layer3_residual_2")
    x = tf.reshape(pool(x, 4), [-1, 512])
    return 0.125 * tf.matmul(x, values[CLASSIFIER])


def values_of(model: keras.Model) -> dict[str, tf.Tensor]:
    return {one.path: tf.cast(one.value, tf.float64) for one in model.variables}


def relative_difference(ours, expected) -> float:
    """The norm of the difference as a share of that of what is expected."""
    ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(ours - expected) / np.linalg.norm(expected)


def test_it_has_the_variables_of_the_source():
    model = new()
    expected = {CLASSIFIER: (512, 10)}
    for name, (channels, filters) in CONVOLUTIONS.items():
        expected[f"{name}/kernel"] = (3, 3, channels, filters)
        expected[f"{name}/gamma"] = expected[f"{name}/beta"] = (filters,)
    found = {one.path: tuple(one.shape) for one in model.trainable_variables}
    assert found == expected
    # 9 * (3 * 64 + 64 * 128 + 2 * 128**2 + 128 * 256 + 256 * 512 + 2 * 512**2)
    # + 2 * (64 + 3 * 128 + 256 + 3 * 512) + 512 * 10.
    assert sum(int(np.prod(shape)) for shape in found.values()) == 6_573_120
    assert len(model.non_trainable_variables) == 2 * len(CONVOLUTIONS)


def test_it_starts_as_the_source_but_for_the_kernels():
    model = new()
    for one in model.variables:
        if one.path.endswith(("/gamma", "/moving_variance")):
            assert np.all(one == 1)
        elif one.path.endswith(("/beta", "/moving_mean")):
            assert not np.any(one)
    # PyTorch's: evenly between -1 / sqrt(512) and 1 / sqrt(512), 5,120 draws.
    kernel = model.get_layer("classifier").kernel.numpy()
    assert 0.99 * 512**-0.5 < abs(kernel).max() <= 512**-0.5
    assert kernel.std() == pytest.approx((3 * 512) ** -0.5, rel=0.05)


@pytest.mark.parametrize("training", [False, True])
def test_the_network_is_that_of_the_paper(training):
    model = build()
    images = random_images(4)
    expected = reference(values_of(model), images, training)
    ours = model(images, training=training)
    assert ours.dtype == tf.float32
    # Nine layers of float32 sums.
    assert relative_difference(ours, expected) < 1e-5


def test_the_gradients_are_those_of_the_paper():
    model = build()
    images, labels = random_images(4), tf.constant([3, 1, 9, 0])
    values = values_of(model)
    with tf.GradientTape() as tape:
        tape.watch(values)
        logits = reference(values, images, training=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    expected = tape.gradient(loss, values)
    variables = {one.path: one.value for one in model.trainable_variables}
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    for name, gradient in tape.gradient(loss, variables).items():
        # About 5e-6. In float32 another of two almost equal values may be the maximum
        # of a pool's window, or a value may be on the other side of ReLU's kink: each
        # adds about 1e-3.
        assert relative_difference(gradient, expected[name]) < 1e-2, name


@pytest.mark.parametrize(("side", "last"), [(32, 4), (36, 5), (64, 8), (100, 13)])
def test_the_last_pool_takes_all_that_is_left(side, last):
    model = build(side)
    inner = keras.Model(
        model.input,
        [model.get_layer(name).output for name in ("layer3_residual_sum", "pool")],
    )
    images = random_images(2, side)
    places, pooled = inner(images)
    assert places.shape == (2, last, last, 512)
    np.testing.assert_array_equal(pooled, np.max(places, (1, 2), keepdims=True))
    assert model(images).shape == (2, 10)


def test_in_bfloat16_the_logits_come_near_those_in_float32():
    exact, short = build(), build(compute_dtype="bfloat16")
    images = random_images(8)
    ours = short(images, training=True)
    assert ours.dtype == tf.float32
    inner = keras.Model(short.input, short.get_layer("pool").output)
    assert inner(images).dtype == tf.bfloat16
    assert {one.dtype for one in short.variables} == {"float32"}
    # Each of some 10 layers rounds to 8 bits, by up to 0.4 %.
    assert 0 < relative_difference(ours, exact(images, training=True)) < 0.05


def test_the_seed_decides_the_weights():
    first = new()
    same, other = (models.build("resnet9", 10, 32, seed=seed) for seed in (1, 2))
    for one, two, three in zip(
        first.trainable_variables,
        same.trainable_variables,
        other.trainable_variables,
        strict=True,
    ):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
        if one.path.endswith("/kernel"):
            assert not np.array_equal(one.numpy(), three.numpy())
