"""Layers of few lines: pools by their definition, the classifier, the shortcut."""

import numpy as np
import pytest
import tensorflow as tf

from resnet.models import layers
from tests.drawn import normal
from tests.reference.networks import random_images

CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # Sums of up to some hundred float32 products.


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


def test_the_classifier_starts_with_small_weights():
    layer = layers.Classifier(1000, seed=2, name="classifier")
    layer.build((None, 7, 7, 64))
    # 64,000 draws: 0.3 % is the standard deviation of their standard deviation.
    assert layer.kernel.numpy().std() == pytest.approx(0.01, rel=0.02)
    assert not layer.bias.numpy().any()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_the_shortcut_subsamples_and_appends_zeros_and_so_does_its_gradient(dtype):
    layer = layers.ZeroPadShortcut(5, 2, "shortcut")
    x = tf.cast(random_images(2, 7), dtype)
    weights = tf.cast(np.random.default_rng(2).normal(size=(2, 4, 4, 5)), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y[..., :3], x[:, ::2, ::2])
    np.testing.assert_array_equal(y[..., 3:], np.zeros((2, 4, 4, 2)))
    expected = np.zeros((2, 7, 7, 3))
    expected[:, ::2, ::2] = tf.cast(weights[..., :3], tf.float64)
    gradient = tape.gradient(y, x, weights)
    np.testing.assert_array_equal(tf.cast(gradient, tf.float64), expected)
