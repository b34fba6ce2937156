import numpy as np
import pytest
import tensorflow as tf

from resnet.models.layers import whitening
from resnet.models.layers.whitening import EPSILON, Whitening


def images(count: int = 40, side: int = 9) -> np.ndarray:
    """Noise whose channels and neighbors are correlated."""
    generator = np.random.default_rng(0)
    noise = generator.normal(0.3, 1, (count, side + 1, side, 3))
    mixed = noise @ np.array([[1, 0.5, 0.2], [0, 1, 0.6], [0, 0, 0.3]])
    return (mixed[:, 1:] + mixed[:, :-1]).astype(np.float32)


def patches(of: np.ndarray, size: int) -> np.ndarray:
    count, height, width, _ = of.shape
    return np.array(
        [
            of[i, y : y + size, x : x + size].ravel()
            for i in range(count)
            for y in range(height - size + 1)
            for x in range(width - size + 1)
        ],
        np.float64,
    )


@pytest.mark.parametrize("size", [2, 3])
def test_the_moments_are_means_over_all_patches_of_all_batches(size):
    given = images()
    found = whitening.second_moments([given[:7], given[7:]], size)
    rows = patches(given, size)
    np.testing.assert_allclose(found, rows.T @ rows / len(rows), rtol=1e-9)


def test_the_outputs_are_uncorrelated_and_of_variance_one():
    given = images()
    layer = Whitening(2, "whitening")
    layer.build(given.shape)
    whitening.whiten(layer, [given[:5], given[5:]])
    outputs = layer(tf.constant(given)).numpy().astype(np.float64)
    assert outputs.shape == (40, 8, 8, 24)
    rows = outputs.reshape(-1, 24)
    # The second half is the negative of the first, up to the order of the sums of 12
    # products in float32, which a CPU may add differently from column to column.
    np.testing.assert_allclose(rows[:, 12:], -rows[:, :12], rtol=0, atol=1e-5)
    moments = rows[:, :12].T @ rows[:, :12] / len(rows)
    values = np.linalg.eigvalsh(whitening.second_moments([given], 2))[::-1]
    expected = np.diag(values / (values + EPSILON))
    # Sums of 12 products in float32.
    np.testing.assert_allclose(moments, expected, rtol=0, atol=1e-4)


def test_the_filters_are_scaled_eigenvectors_whose_largest_value_is_positive():
    moments = np.diag(np.arange(12.0, 0, -1))
    kernel = whitening.kernel_of(moments, 2)
    assert kernel.shape == (2, 2, 3, 24)
    rows = kernel.reshape(12, 24)
    expected = np.diag(1 / np.sqrt(np.arange(12.0, 0, -1) + EPSILON))
    np.testing.assert_allclose(rows[:, :12], expected, rtol=1e-6)
    np.testing.assert_array_equal(rows[:, 12:], -rows[:, :12])


def test_the_first_kernel_is_for_white_noise_and_only_the_bias_is_trained():
    layer = Whitening(2, "whitening")
    outputs = layer(tf.zeros([1, 4, 4, 3]))
    assert [one.path for one in layer.trainable_variables] == ["whitening/bias"]
    assert not np.any(outputs)
    kernel = whitening.kernel_of(np.eye(12), 2)
    np.testing.assert_array_equal(layer.kernel.numpy(), kernel)
    layer.bias.assign(np.arange(24.0))
    np.testing.assert_array_equal(layer(tf.zeros([1, 4, 4, 3]))[0, 2, 1], np.arange(24))
