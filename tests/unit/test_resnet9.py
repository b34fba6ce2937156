import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from tests.unit.reference_network import (
    change_start_values,
    gradients_of_both,
    normalize,
    random_images,
    relative_difference,
    values_of,
)

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
    return change_start_values(model)


def reference(
    values: dict[str, tf.Tensor], images: tf.Tensor, training: bool
) -> tf.Tensor:
    """The network of the paper for 32 pixels, as plain operations in float64."""

    def conv(x: tf.Tensor, name: str) -> tf.Tensor:
        x = tf.nn.conv2d(x, values[f"{name}/kernel"], 1, "SAME")
        return tf.nn.relu(normalize(x, values, name, training))

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
    images = random_images()
    expected = reference(values_of(model), images, training)
    ours = model(images, training=training)
    assert ours.dtype == tf.float32
    # Nine layers of float32 sums.
    assert relative_difference(ours, expected) < 1e-5


def test_the_gradients_are_those_of_the_paper():
    model = build()
    images = random_images()
    found, expected = gradients_of_both(
        model, lambda values: reference(values, images, training=True), images
    )
    for name, gradient in found.items():
        # About 5e-6; another maximum, or a value beyond ReLU's kink, adds about 1e-3.
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
