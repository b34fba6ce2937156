import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from resnet.models import alexnet, flops
from tests.unit.described_model import without_values
from tests.unit.reference_network import (
    Values,
    change_start_values,
    gradients_of_both,
    normalize,
    random_images,
    relative_difference,
    values_of,
)

# Name in the network with BatchNorm: (filters in, filters out, stride, pool).
CONVOLUTIONS = {
    "prep": (3, 64, 2, True),
    "layer1": (64, 192, 1, True),
    "layer2": (192, 384, 1, False),
    "layer3": (384, 256, 1, False),
    "layer4": (256, 256, 1, True),
}
DENSE = {"dense1": (1024, 4096), "dense2": (4096, 4096), "classifier": (4096, 10)}


@functools.cache
def build(name: str, **given) -> keras.Model:
    """A network whose biases and normalizations have values that no wiring survives.

    It is shared: its moving averages move when it is called in training. Dense layers
    are narrow, since 4096 units take seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alexnet, "DENSE_UNITS", 64)
        model = models.build(name, 10, 32, seed=1, **given)
    return change_start_values(model)


def convolve(x: tf.Tensor, kernel: tf.Tensor, stride: int) -> tf.Tensor:
    """A 3x3 convolution that pads with one pixel on each side, as PyTorch's."""
    x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return tf.nn.conv2d(x, kernel, stride, "VALID")


def reference(values: dict[str, tf.Tensor], images: tf.Tensor) -> tf.Tensor:
    """The network without BatchNorm, as plain operations in float64."""
    x = tf.cast(images, tf.float64)
    for number, (_, _, stride, is_pooled) in enumerate(CONVOLUTIONS.values(), start=1):
        x = convolve(x, values[f"conv{number}/kernel"], stride)
        x = tf.nn.relu(x + values[f"conv{number}/bias"])
        if is_pooled:
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [-1, 1024])
    for name in DENSE:
        x = tf.matmul(x, values[f"{name}/kernel"]) + values[f"{name}/bias"]
        x = x if name == "classifier" else tf.nn.relu(x)
    return x


def reference_with_batch_norm(
    values: dict[str, tf.Tensor], images: tf.Tensor, training: bool
) -> tf.Tensor:
    x = tf.cast(images, tf.float64)
    for name, (_, _, stride, is_pooled) in CONVOLUTIONS.items():
        x = convolve(x, values[f"{name}/kernel"], stride)
        x = tf.nn.relu(normalize(x, values, name, training))
        if is_pooled:
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), [-1, 256])
    return 0.125 * tf.matmul(x, values["classifier/kernel"])


def test_alexnet_has_the_variables_of_the_source():
    expected = {}
    for number, (channels, filters, *_) in enumerate(CONVOLUTIONS.values(), start=1):
        expected[f"conv{number}/kernel"] = (3, 3, channels, filters)
        expected[f"conv{number}/bias"] = (filters,)
    for name, shape in DENSE.items():
        expected[f"{name}/kernel"], expected[f"{name}/bias"] = shape, shape[1:]
    model = without_values("alexnet", 10, 32)
    found = {one.path: tuple(one.shape) for one in model.variables}
    assert found == expected
    assert sum(int(np.prod(shape)) for shape in found.values()) == 23_272_266
    assert model.trainable_variables == model.variables


def test_the_variant_with_batch_norm_has_the_variables_of_the_source():
    expected = {"classifier/kernel": (256, 10)}
    for name, (channels, filters, *_) in CONVOLUTIONS.items():
        expected[f"{name}/kernel"] = (3, 3, channels, filters)
        expected[f"{name}/gamma"] = expected[f"{name}/beta"] = (filters,)
    model = build("alexnet_bn")
    found = {one.path: tuple(one.shape) for one in model.trainable_variables}
    assert found == expected
    assert sum(int(np.prod(shape)) for shape in found.values()) == 2_255_296
    assert len(model.non_trainable_variables) == 2 * len(CONVOLUTIONS)


def test_the_operations_are_those_of_the_layers():
    # Outputs of 16, 8, 4, 4 and 4 pixels per side.
    convolutions = 9 * (
        256 * 3 * 64 + 64 * 64 * 192 + 16 * (192 * 384 + 384 * 256 + 256 * 256)
    )
    dense = sum(channels * units for channels, units in DENSE.values())
    plain = flops.count_forward_pass(without_values("alexnet", 10, 32))
    assert plain == 2 * (convolutions + dense)
    with_batch_norm = flops.count_forward_pass(build("alexnet_bn"))
    assert with_batch_norm == 2 * (convolutions + 2560)


def test_alexnet_is_that_of_the_source():
    model = build("alexnet")
    ours = model(random_images(), training=False)
    assert ours.dtype == tf.float32
    # Eight layers of float32 sums.
    expected = reference(values_of(model), random_images())
    assert relative_difference(ours, expected) < 1e-5


@pytest.mark.parametrize("training", [False, True])
def test_the_variant_with_batch_norm_is_that_of_the_source(training):
    model = build("alexnet_bn")
    expected = reference_with_batch_norm(values_of(model), random_images(), training)
    ours = model(random_images(), training=training)
    assert relative_difference(ours, expected) < 1e-5


@pytest.mark.parametrize("name", ["alexnet", "alexnet_bn"])
def test_the_gradients_are_those_of_the_source(name):
    model = build(name)
    images = random_images()
    has_batch_norm = name == "alexnet_bn"

    def logits(values: Values) -> tf.Tensor:
        if has_batch_norm:
            return reference_with_batch_norm(values, images, training=True)
        return reference(values, images)

    training = has_batch_norm  # The other one has dropout.
    found, expected = gradients_of_both(model, logits, images, training)
    for path, gradient in found.items():
        # As in the test of ResNet-9.
        assert relative_difference(gradient, expected[path]) < 1e-2, path


@pytest.mark.parametrize("name", ["alexnet", "alexnet_bn"])
def test_in_bfloat16_the_logits_come_near_those_in_float32(name):
    exact, short = build(name), build(name, compute_dtype="bfloat16")
    images = random_images(8)
    ours = short(images, training=False)
    assert ours.dtype == tf.float32
    assert {one.dtype for one in short.variables} == {"float32"}
    # Each layer rounds to 8 bits, by up to 0.4 %.
    assert 0 < relative_difference(ours, exact(images, training=False)) < 0.05


def test_alexnet_takes_images_of_its_size_only():
    assert build("alexnet").output_shape == (None, 10)
    with pytest.raises(ValueError, match="incompatible with the layer"):
        build("alexnet")(random_images(side=64))
    larger = without_values("alexnet", 10, 48)
    assert larger.get_layer("dense1").kernel.shape == (9 * 256, 4096)


def test_the_variant_with_batch_norm_takes_images_of_any_size():
    assert build("alexnet_bn")(random_images(side=72)).shape == (4, 10)


@pytest.mark.parametrize("name", ["alexnet", "alexnet_bn"])
def test_the_seed_decides_the_weights(name, monkeypatch):
    monkeypatch.setattr(alexnet, "DENSE_UNITS", 256)
    first, same, other = (models.build(name, 10, 32, seed=seed) for seed in (1, 1, 2))
    for one, two, three in zip(
        first.variables, same.variables, other.variables, strict=True
    ):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
        if one.path.endswith("/kernel"):
            assert not np.array_equal(one.numpy(), three.numpy())
