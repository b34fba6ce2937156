import itertools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet import native
from resnet.models.layers import convolution
from tests.drawn import normal
from tests.unit.each_instruction_set import (  # noqa: F401 - pytest finds them.
    instruction_set,
    pytest_generate_tests,
)
from tests.unit.slow_convolution import slow_convolution


def stock_ops(*arguments, **extras) -> tf.Tensor:
    """The convolution by TensorFlow's own ops."""
    with mock.patch.object(native, "fast_ops", return_value=None):
        return convolution.conv2d(*arguments, **extras)


WAYS = [convolution.conv2d, stock_ops]
# Sums of up to some thousand float32 products, transformed and back for 3x3 kernels.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def test_the_compiled_ops_are_used(dtype):
    assert native.fast_ops(dtype) is not None


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 7])
def test_it_is_the_slow_one_with_fixed_padding(kernel_size):
    kernel = normal(kernel_size, kernel_size, 3, 5, seed=1)
    for size, stride in itertools.product([(8, 8), (6, 9), (1, 2)], [1, 2]):
        images = normal(2, *size, 3)
        expected = slow_convolution(images, kernel, stride)
        assert expected.shape[1:3] == tuple(-(-side // stride) for side in size)
        for way in WAYS:
            ours = way(tf.constant(images), tf.constant(kernel), stride)
            np.testing.assert_allclose(ours, expected, **CLOSE)


def outputs_and_gradients(way, images, kernel, stride, weights, extras) -> list:
    """Outputs, and gradients of all inputs, of `weights` times the outputs."""
    inputs = [images, kernel, *extras.values()]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = way(images, kernel, stride, **extras)
        loss = tf.reduce_sum(tf.cast(outputs, tf.float32) * weights)
    return [outputs, *tape.gradient(loss, inputs)]


def expected_of(images, kernel, stride, weights) -> list:
    """What `outputs_and_gradients` are by the stock ops in float32.

    In bfloat16 the inputs are rounded to it. The stock ops' own sums are less exact.
    """
    rounded = [
        tf.cast(tf.cast(array, images.dtype), tf.float32)
        for array in (images, kernel, weights)
    ]
    return outputs_and_gradients(stock_ops, *rounded[:2], stride, rounded[2], {})


def assert_near(ours, expected, tolerance: float) -> None:
    """Compares by the norm of the difference and by the largest one."""
    ours, expected = (tf.cast(one, tf.float64).numpy() for one in (ours, expected))
    assert ours.shape == expected.shape
    difference = ours - expected
    assert np.linalg.norm(difference) <= tolerance * np.linalg.norm(expected)
    assert abs(difference).max() <= 8 * tolerance * max(abs(expected).max(), 1e-30)


# Of rounding in products of some thousand terms; bfloat16 rounds to 8 bits.
TOLERANCE = {tf.float32: 1e-5, tf.bfloat16: 8e-3}


def assert_as_exact_as_stock_ops(sizes, kernel_size, filters, stride, dtype) -> None:
    """Compares outputs and gradients for images of sizes [batch, ..., channels]."""
    images = tf.cast(normal(*sizes), dtype)
    kernel = normal(kernel_size, kernel_size, sizes[-1], filters, seed=1)
    batch, *sides, _ = sizes
    weights = normal(batch, *(-(-side // stride) for side in sides), filters, seed=2)
    inputs = images, tf.constant(kernel), stride, weights
    ours = outputs_and_gradients(convolution.conv2d, *inputs, {})
    assert [array.dtype for array in ours] == [dtype, dtype, tf.float32]
    for one, other in zip(ours, expected_of(*inputs), strict=True):
        assert_near(one, other, TOLERANCE[dtype])


@settings(max_examples=25)
@given(
    batch=st.integers(1, 3),
    height=st.integers(1, 13),
    width=st.integers(1, 13),
    channels=st.sampled_from([1, 3, 16, 33, 48, 64]),
    filters=st.sampled_from([1, 5, 16, 32, 40, 64]),
    kernel_size=st.sampled_from([1, 2, 3, 5, 7]),
    stride=st.integers(1, 3),
)
def test_outputs_and_gradients_are_those_of_stock_ops(
    batch, height, width, channels, filters, kernel_size, stride, dtype
):
    sizes = batch, height, width, channels
    assert_as_exact_as_stock_ops(sizes, kernel_size, filters, stride, dtype)


# Each kind of convolution that ResNet-50 has at 224 px: side, channels, size, filters,
# stride.
RESNET50 = [
    (224, 3, 7, 64, 2),
    (56, 64, 1, 64, 1),
    (56, 64, 3, 64, 1),
    (56, 64, 1, 256, 1),  # By non-temporal stores, if one thread computes it.
    (56, 128, 3, 128, 2),
    (56, 256, 1, 512, 2),
    (28, 128, 3, 128, 1),
    (14, 256, 3, 256, 1),  # More Winograd tiles than fit into a block of columns.
    (14, 1024, 1, 256, 1),
    (7, 512, 3, 512, 1),
    (7, 512, 1, 2048, 1),
]


@pytest.mark.parametrize(("side", "channels", "size", "filters", "stride"), RESNET50)
def test_those_of_resnet50_are_as_exact_as_stock_ops(
    side, channels, size, filters, stride, dtype
):
    sizes = 2, side, side, channels
    assert_as_exact_as_stock_ops(sizes, size, filters, stride, dtype)


@pytest.mark.parametrize(("size", "channels"), [(1, 32), (3, 32), (3, 5)])
def test_scale_bias_residual_and_relu_have_gradients_too(size, channels, dtype):
    images = tf.cast(normal(2, 6, 7, channels), dtype)
    kernel = tf.constant(normal(size, size, channels, 40, seed=1))
    weights = normal(2, 6, 7, 40, seed=2)
    extras = {
        "scale": tf.constant(normal(40, seed=5)),
        "bias": tf.constant(normal(40, seed=3)),
        "residual": tf.cast(normal(2, 6, 7, 40, seed=4), dtype),
    }
    # Without outputs near ReLU's kink, on either side of which they may be rounded.
    before = stock_ops(images, kernel, 1, **extras)
    weights = weights * (np.abs(tf.cast(before, tf.float32)) > 0.5)

    def with_relu(way):
        def apply(images, kernel, stride, **extras):
            return way(images, kernel, stride, relu=True, **extras)

        return apply

    ours, expected = (
        outputs_and_gradients(with_relu(way), images, kernel, 1, weights, extras)
        for way in WAYS
    )
    assert (ours[0].numpy() == 0).any()
    # In bfloat16 the stock ops round three times.
    tolerance = {tf.float32: 1e-5, tf.bfloat16: 2e-2}[dtype]
    for one, other in zip(ours, expected, strict=True):
        assert_near(one, other, tolerance)


@pytest.mark.parametrize("filters", [5, 40, 130])
@pytest.mark.parametrize(("size", "channels"), [(1, 3), (1, 64), (3, 8), (3, 33)])
def test_a_scaled_kernel_is_rounded_once(size, channels, filters, dtype):
    images = tf.cast(normal(2, 6, 7, channels), dtype)
    kernel = tf.constant(normal(size, size, channels, filters, seed=1))
    scale = tf.constant(normal(filters, seed=2))
    ours = convolution.conv2d(images, kernel, 1, scale=scale)
    expected = convolution.conv2d(images, kernel * scale, 1)
    np.testing.assert_array_equal(tf.cast(ours, float), tf.cast(expected, float))


def test_the_same_call_gives_the_same_bits():
    images, kernel = tf.constant(normal(4, 14, 14, 64)), normal(3, 3, 64, 64, seed=1)
    weights = normal(4, 14, 14, 64, seed=2)
    first, second = (
        outputs_and_gradients(
            convolution.conv2d, images, tf.constant(kernel), 1, weights, {}
        )
        for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
