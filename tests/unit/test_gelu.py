"""GELU, against its formula in NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.models.layers.activations import Gelu, gelu
from tests.unit.each_map_kernel import (
    kernels,  # noqa: F401 - pytest finds it.
    only_compiled,
)

X = np.linspace(-6, 6, 2001)  # Several strips of the compiled op.
PHI = np.array([(1 + math.erf(x / math.sqrt(2))) / 2 for x in X])
DENSITY = np.exp(-X * X / 2) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("in_graph", [False, True])
def test_values_and_gradients_are_those_of_the_formula(in_graph):
    x = tf.constant(X, tf.float32)
    upstream = tf.constant(np.cos(X), tf.float32)

    def both() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gelu(x, "float32")
        return y, tape.gradient(y, x, output_gradients=upstream)

    y, slope = (tf.function(both) if in_graph else both)()
    np.testing.assert_allclose(y, X * PHI, rtol=1e-5, atol=1e-6)
    expected = np.cos(X) * (PHI + X * DENSITY)
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=2e-6)


def test_it_may_change_the_dtype_and_gradients_change_it_back():
    x = tf.constant(X, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x, "bfloat16")
    slope = tape.gradient(y, x)
    assert (y.dtype, slope.dtype) == (tf.bfloat16, tf.float32)
    # Rounded once, to 8 bits.
    np.testing.assert_allclose(tf.cast(y, tf.float32), X * PHI, rtol=2**-8, atol=1e-6)


def test_the_layer_has_the_shape_of_its_inputs():
    images = tf.zeros([2, 3, 4, 5], tf.bfloat16)
    outputs = Gelu("bfloat16", "gelu")(images)
    assert (outputs.shape, outputs.dtype) == (images.shape, tf.bfloat16)


def test_far_from_zero_it_is_zero_or_the_identity():
    x = tf.constant([-1e4, -100.0, -14.0, 0.0, 14.0, 100.0, 1e4])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x, "float32")
    expected = [0, 0, 0, 0, 14, 100, 1e4]
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-30)
    slope = tape.gradient(y, x)
    np.testing.assert_allclose(slope, [0, 0, 0, 0.5, 1, 1, 1], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("to", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_stays_nan(dtype, to):
    assert np.isnan(tf.cast(gelu(tf.cast([1.0, np.nan], dtype), to), float))[1]


@pytest.mark.parametrize("to", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [0, 1, 511, 513, 40_000])
def test_any_number_of_values_has_any_pair_of_dtypes(count, dtype, to):
    numbers = np.linspace(-3, 3, count)
    x = tf.cast(numbers, dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x, to)
    slope = tape.gradient(y, x, tf.cast(tf.fill([count], 2.0), to))
    exact = tf.cast(x, tf.float64).numpy()
    phi = np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in exact])
    density = np.exp(-exact * exact / 2) / math.sqrt(2 * math.pi)
    limits = {"rtol": 2**-7, "atol": 1e-6}
    assert (y.dtype, slope.dtype) == (to, dtype)
    np.testing.assert_allclose(tf.cast(y, tf.float64), exact * phi, **limits)
    expected = 2 * (phi + exact * density)
    np.testing.assert_allclose(tf.cast(slope, tf.float64), expected, **limits)


@only_compiled
def test_the_gradient_refuses_another_shape():
    with pytest.raises(tf.errors.InvalidArgumentError, match="dy must be shaped like"):
        native.ops().resnet_gelu_grad(dy=tf.zeros([3]), x=tf.zeros([4]))
