import numpy as np
import pytest
import tensorflow as tf

from resnet.models.layers import PooledConvNorm

SETTINGS = {"batch_norm_momentum": 0.75, "seed": 1, "name": "conv"}


def made(**given) -> PooledConvNorm:
    return PooledConvNorm(4, 3, 1, fixed_gamma=True, epsilon=0.25, **SETTINGS, **given)


def pooled(images: np.ndarray, layer: PooledConvNorm) -> np.ndarray:
    """The maxima of the convolution's 2x2 windows, in float64."""
    kernel = tf.cast(layer.kernel.value, tf.float64)
    outputs = tf.nn.conv2d(tf.cast(images, tf.float64), kernel, 1, "SAME").numpy()
    count, height, width, filters = outputs.shape
    even = outputs[:, : height // 2 * 2, : width // 2 * 2]
    windows = even.reshape(count, height // 2, 2, width // 2, 2, filters)
    return windows.max((2, 4))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_maxima_of_windows_are_normalized(training, relu):
    layer = made(relu=relu)
    generator = np.random.default_rng(0)
    images = generator.normal(size=(3, 7, 9, 2)).astype(np.float32)
    layer.build(images.shape)
    layer.beta.assign(generator.normal(size=4))
    layer.moving_mean.assign(generator.normal(size=4))
    layer.moving_variance.assign(generator.uniform(0.5, 2, 4))
    values = pooled(images, layer)
    rows = values.reshape(-1, 4)
    mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
    moved = mean, variance
    if training:
        moved = (
            0.75 * mean + 0.25 * rows.mean(0),
            0.75 * variance + 0.25 * rows.var(0, ddof=1),
        )
        mean, variance = rows.mean(0), rows.var(0)
    expected = (values - mean) / np.sqrt(variance + 0.25) + layer.beta.numpy()
    expected = np.maximum(expected, 0) if relu else expected
    outputs = layer(tf.constant(images), training=training)
    assert outputs.shape == (3, 3, 4, 4) == layer.compute_output_shape(images.shape)
    # Sums of 18 products in float32.
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, moved[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, moved[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [{}, {"fixed_gamma": True, "num_copies": 2}])
def test_what_the_pool_can_not_be_folded_with_is_refused(given):
    with pytest.raises(ValueError, match="expected fixed_gamma and num_copies=1"):
        PooledConvNorm(4, 3, 1, **SETTINGS, **given)
