import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from resnet.models import flops
from resnet.models.layers import whitening
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
    "block1_conv1": (24, 64),
    "block1_conv2": (64, 64),
    "block2_conv1": (64, 256),
    "block2_conv2": (256, 256),
    "block3_conv1": (256, 256),
    "block3_conv2": (256, 256),
}


@functools.cache
def new() -> keras.Model:
    """Returns a network as it starts, which is shared and not to be changed."""
    return models.build("airbench94", 10, 32, seed=1, initialization="dirac")


@functools.cache
def build(compute_dtype: str = "float32") -> keras.Model:
    """A network whose normalizations have values that no wrong wiring survives.

    It is shared: its moving averages move when it is called in training.
    """
    model = models.build("airbench94", 10, 32, compute_dtype=compute_dtype)
    (layer,) = whitening.layers_of(model)
    whitening.whiten(layer, [random_images().numpy()])
    return change_start_values(model)


def reference(
    values: dict[str, tf.Tensor], images: tf.Tensor, training: bool
) -> tf.Tensor:
    """The network of the paper for 32 pixels, as plain operations in float64."""

    def gelu(x: tf.Tensor) -> tf.Tensor:
        return x * (1 + tf.math.erf(x / 2**0.5)) / 2

    def block(x: tf.Tensor, name: str, is_pooled: bool) -> tf.Tensor:
        x = tf.nn.conv2d(x, values[f"{name}/kernel"], 1, "SAME")
        if is_pooled:
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        return gelu(normalize(x, values, name, training))

    x = tf.cast(images, tf.float64)
    x = tf.nn.conv2d(x, values["whitening/kernel"], 1, "VALID")
    x = gelu(x + values["whitening/bias"])
    for name in CONVOLUTIONS:
        x = block(x, name, name.endswith("1"))
    x = tf.reshape(tf.nn.max_pool2d(x, 3, 3, "VALID"), [-1, 256])
    return tf.matmul(x, values["classifier/kernel"]) / 9


def test_it_has_the_variables_of_the_source():
    model = new()
    expected = {"whitening/bias": (24,), "classifier/kernel": (256, 10)}
    for name, (channels, filters) in CONVOLUTIONS.items():
        expected[f"{name}/kernel"] = (3, 3, channels, filters)
        expected[f"{name}/beta"] = (filters,)
    found = {one.path: tuple(one.shape) for one in model.trainable_variables}
    assert found == expected
    # 24 + 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256) + 2 * 64 + 4 * 256 + 2560.
    assert sum(int(np.prod(shape)) for shape in found.values()) == 1_971_352
    constant = {one.path for one in model.non_trainable_variables}
    averages = [f"{name}/moving_mean" for name in CONVOLUTIONS]
    averages += [f"{name}/moving_variance" for name in CONVOLUTIONS]
    assert constant == {"whitening/kernel", *averages}


def test_the_first_filters_copy_the_channels():
    model = new()
    for name, (channels, filters) in CONVOLUTIONS.items():
        kernel = model.get_layer(name).kernel.numpy()
        identity = np.zeros((3, 3, channels, channels))
        identity[1, 1] = np.eye(channels)
        np.testing.assert_array_equal(kernel[..., :channels], identity)
        rest = kernel[..., channels:]
        if filters > channels:  # PyTorch's: even up to 1 / sqrt(inputs).
            limit = (9 * channels) ** -0.5
            assert 0.99 * limit < abs(rest).max() <= limit
    assert not np.any(model.get_layer("whitening").bias)
    assert abs(model.get_layer("classifier").kernel.numpy()).max() <= 256**-0.5


def test_the_operations_are_those_of_the_source():
    model = new()
    constant = 31 * 31 * 4 * 3 * 24
    sides = (31, 15, 15, 7, 7, 3)
    trained = 2560 + sum(
        9 * side**2 * channels * filters
        for side, (channels, filters) in zip(sides, CONVOLUTIONS.values(), strict=True)
    )
    assert flops.count_forward_pass(model) == 2 * (constant + trained)
    assert flops.count_training_step(model) == 2 * (constant + 3 * trained)
    # The source's 0.36 PFLOPs, of which 9.9 epochs of 49,152 images are 476 steps.
    assert 476 * 1024 * flops.count_training_step(model) == pytest.approx(
        0.36e15, rel=0.05
    )


@pytest.mark.parametrize("training", [False, True])
def test_the_network_is_that_of_the_paper(training):
    model = build()
    images = random_images()
    expected = reference(values_of(model), images, training)
    ours = model(images, training=training)
    assert ours.dtype == tf.float32
    # Eight layers of float32 sums.
    assert relative_difference(ours, expected) < 1e-5


def test_the_gradients_are_those_of_the_paper():
    model = build()
    images = random_images()
    found, expected = gradients_of_both(
        model, lambda values: reference(values, images, training=True), images
    )
    for name, gradient in found.items():
        assert relative_difference(gradient, expected[name]) < 1e-2, name


def test_in_bfloat16_the_logits_come_near_those_in_float32():
    exact, short = build(), build("bfloat16")
    images = random_images(8)
    ours = short(images, training=True)
    assert ours.dtype == tf.float32
    inner = keras.Model(short.input, short.get_layer("pool").output)
    assert inner(images).dtype == tf.bfloat16
    # Each of some 10 layers rounds to 8 bits, by up to 0.4 %.
    assert 0 < relative_difference(ours, exact(images, training=True)) < 0.05
