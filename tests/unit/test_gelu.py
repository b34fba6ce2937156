import math

import numpy as np
import pytest
import tensorflow as tf

from resnet.models.gelu import Gelu, gelu

X = np.linspace(-6, 6, 401)
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
