"""Max pooling and the mean over all positions, against loops in NumPy."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet import native
from resnet.models.layers import pooling
from tests.unit.each_instruction_set import (
    kernels,  # noqa: F401 - pytest finds it.
    only_compiled,
)

DTYPES = ("float32", "bfloat16")
REFUSED = (tf.errors.InvalidArgumentError, ValueError)
# Channels: less than a block of the kernels, several, and no multiple of one.
SIZES = [(4, 4, 3), (5, 6, 64), (1, 3, 70), (5, 4, 130)]
WINDOWS = [  # Of ResNet and Inception, of torchvision, of airbench, and some more.
    ((3, 3), 2, "same"),
    ((3, 3), 1, "same"),
    ((3, 3), 2, "symmetric"),
    ((2, 2), 2, "valid"),
    ((2, 2), 2, "same"),
    ((1, 3), 1, "valid"),
    ((1, 1), 3, "same"),
]


def different(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns 251 numbers of both signs, exact in bfloat16, in any order."""
    count = np.prod(shape, dtype=int)
    numbers = np.random.default_rng(seed).permutation(count) % 251 - 125
    return numbers.reshape(shape).astype(np.float32) / 8


def borders(side: int, window: int, stride: int, padding: str) -> list[slice]:
    """Returns the inputs of each window along one side."""
    before, count = 0, (side - window) // stride + 1
    if padding == "same":
        count = -(-side // stride)
        before = max((count - 1) * stride + window - side, 0) // 2
    elif padding == "symmetric":
        before = (window - 1) // 2
        count = (side + 2 * before - window) // stride + 1
    begins = [i * stride - before for i in range(count)]
    return [slice(max(begin, 0), begin + window) for begin in begins]


@functools.cache
def slow(size: tuple[int, ...], window, stride: int, padding: str) -> tuple:
    """Returns images of a size, and what is to be computed of them.

    That is the maxima, factors for them, and the gradient of the sum of products.
    """
    images = different(2, *size)
    rows = borders(images.shape[1], window[0], stride, padding)
    columns = borders(images.shape[2], window[1], stride, padding)
    count, channels = images.shape[0], images.shape[3]
    maxima = np.empty((count, len(rows), len(columns), channels))
    factors = different(*maxima.shape, seed=1) // 2
    gradient = np.zeros(images.shape)
    for n, i, j, c in np.ndindex(*maxima.shape):
        part = images[n, rows[i], columns[j], c]
        maxima[n, i, j, c] = part.max()
        first = np.unravel_index(part.argmax(), part.shape)
        gradient[n, rows[i], columns[j], c][first] += factors[n, i, j, c]
    return images, maxima, factors, gradient


@pytest.mark.parametrize(("window", "stride", "padding"), WINDOWS)
def test_maxima_and_gradients_are_those_of_the_loops(window, stride, padding):
    for size, dtype in itertools.product(SIZES, DTYPES):
        if padding == "valid" and (size[0] < window[0] or size[1] < window[1]):
            size = (size[0] + 2, size[1] + 2, size[2])  # So that a window fits.
        images, maxima, factors, gradient = slow(size, window, stride, padding)
        x = tf.cast(images, dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = pooling.max_pool(x, window, stride, padding)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(tf.cast(y, tf.float64), maxima)
        ours = tape.gradient(y, x, tf.cast(factors, dtype))
        # The sums of up to nine whole numbers below 9 are exact.
        np.testing.assert_array_equal(tf.cast(ours, tf.float64), gradient)


@pytest.mark.parametrize("dtype", DTYPES)
@only_compiled
def test_nan_of_either_sign_is_the_largest(dtype):
    x = np.array([[-1.0, np.nan], [np.inf, -np.nan]], np.float32).T.reshape(1, 2, 2, 1)
    x = np.repeat(x, 70, -1)
    x[0, 0, 1] = np.copysign(np.nan, -1)
    y = pooling.max_pool(tf.cast(x, dtype), (2, 2), 2, "valid")
    assert np.isnan(tf.cast(y, tf.float32)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@only_compiled  # oneDNN makes -inf the least finite number.
def test_infinity_and_its_opposite_are_numbers(dtype):
    x = tf.cast(tf.reshape([-np.inf, -np.inf, np.inf, 5.0], [1, 2, 2, 1]), dtype)
    rows = pooling.max_pool(x, (1, 2), 2, "valid")
    assert tf.cast(rows, tf.float32).numpy().ravel().tolist() == [-np.inf]
    assert tf.cast(pooling.max_pool(x, (2, 2), 2, "valid"), tf.float32) == np.inf


@only_compiled
def test_of_equal_ones_the_first_gets_the_gradient():
    x = tf.ones([1, 3, 3, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = pooling.max_pool(x, (2, 2), 1, "valid")
    gradient = tape.gradient(y, x).numpy()
    assert gradient[0, :, :, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]


def test_a_graph_knows_the_shapes():
    @tf.function(input_signature=[tf.TensorSpec([None, 7, None, 5])], autograph=False)
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = pooling.max_pool(x, (3, 3), 2, "same")
            mean = pooling.global_mean(x)
        assert y.shape.as_list() == [None, 4, None, 5]
        assert mean.shape.as_list() == [None, 5]
        return tape.gradient([y, mean], x)

    assert gradient(tf.ones([2, 7, 8, 5])).shape == (2, 7, 8, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(
    size=st.tuples(*[st.integers(1, 6)] * 2, st.integers(1, 140)),
    seed=st.integers(0, 9),
)
def test_the_mean_and_its_gradient_are_those_of_numpy(dtype, size, seed):
    images = tf.cast(different(2, *size, seed=seed), dtype)
    weights = tf.cast(different(2, size[-1], seed=seed + 10), dtype)
    with tf.GradientTape() as tape:
        tape.watch(images)
        mean = pooling.global_mean(images)
    exact = tf.cast(images, tf.float64).numpy().mean((1, 2))
    limits = {"rtol": 2**-8, "atol": 0.1} if dtype == "bfloat16" else {"atol": 1e-5}
    assert mean.dtype == images.dtype
    np.testing.assert_allclose(tf.cast(mean, tf.float64), exact, **limits)
    gradient = tf.cast(tape.gradient(mean, images, weights), tf.float64)
    shares = tf.cast(weights, tf.float64).numpy()[:, None, None] / np.prod(size[:2])
    expected = np.broadcast_to(shares, images.shape)
    digits = 2**-7 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(gradient, expected, rtol=digits)


@only_compiled
def test_sums_of_bfloat16_are_in_float32():
    x = tf.fill([1, 32, 32, 3], tf.constant(1.0078125, tf.bfloat16))
    np.testing.assert_array_equal(tf.cast(pooling.global_mean(x), float), 1.0078125)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": tf.zeros([4, 4, 3])}, "must be rank 4|batch, height, width, channels"),
        ({"window": [0, 2]}, "window must be a height and a width"),
        ({"window": [2**32, 2**32]}, "at most 256 positions"),
        ({"stride": 0}, "stride"),
        ({"padding": "other"}, "padding"),
    ],
)
@only_compiled
def test_the_op_refuses_what_it_cannot_use(changed, words):
    arguments = {
        "x": tf.zeros([1, 4, 4, 3]),
        "window": [2, 2],
        "stride": 2,
        "padding": "valid",
    }
    with pytest.raises(REFUSED, match=words):
        native.ops().resnet_max_pool(**{**arguments, **changed})


def test_windows_of_many_positions_have_maxima_too():
    images = different(1, 17, 17, 3)
    y = pooling.max_pool(tf.constant(images), (17, 17), 1, "valid")
    np.testing.assert_array_equal(y, images.max((1, 2), keepdims=True))


@pytest.mark.parametrize(
    ("shape", "places"), [([1, 4, 4, 3], [1, 2, 2, 2]), ([1, 6, 4, 3], [1, 2, 2, 3])]
)
@only_compiled
def test_gradients_must_have_the_shapes_of_the_maxima(shape, places):
    with pytest.raises(REFUSED, match="dy and places must be"):
        native.ops().resnet_max_pool_grad(
            dy=tf.zeros([1, 2, 2, 3]),
            places=tf.zeros(places, tf.uint8),
            x_shape=shape,
            window=[2, 2],
            stride=2,
            padding="valid",
        )
    with pytest.raises(REFUSED, match="dy must be"):
        native.ops().resnet_global_mean_grad(dy=tf.zeros([2, 5]), x_shape=shape)


@only_compiled
def test_no_images_have_no_maxima():
    x = tf.zeros([0, 4, 4, 3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = pooling.max_pool(x, (2, 2), 2, "valid")
        mean = pooling.global_mean(x)
    assert (y.shape, mean.shape) == ((0, 2, 2, 3), (0, 3))
    assert tape.gradient([y, mean], x).shape == x.shape
