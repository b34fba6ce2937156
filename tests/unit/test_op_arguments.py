"""Arguments that the compiled ops can't use are errors, and never end the process."""

import numpy as np
import pytest
import tensorflow as tf

from resnet import native

REFUSED = (tf.errors.InvalidArgumentError, ValueError)
ZEROS = {
    "images": tf.zeros([1, 4, 4, 3]),
    "kernel": tf.zeros([3, 3, 3, 2]),
    "scale": [],
    "bias": [],
    "residual": [],
    "stride": 1,
}
OUTPUTS = tf.zeros([1, 4, 4, 2])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"images": tf.zeros([1, 4, 4, 0]), "kernel": tf.zeros([3, 3, 0, 2])}, "least"),
        ({"kernel": tf.zeros([3, 3, 3, 0])}, "at least one channel"),
        ({"kernel": tf.zeros([0, 0, 3, 2])}, "at least one channel"),
        ({"scale": [tf.zeros([3])]}, r"scale must be \[2\]"),
        ({"scale": [tf.zeros([2]), tf.zeros([2])]}, "num_scales must be 0 or 1; got 2"),
        ({"bias": [tf.zeros([1, 2])]}, r"bias must be \[2\]"),
        ({"residual": [OUTPUTS, OUTPUTS]}, "num_residuals must be 0 or 1; got 2"),
    ],
)
def test_a_convolution_refuses_what_it_cannot_use(changed, words):
    with pytest.raises(REFUSED, match=words):
        native.ops().resnet_conv2d(**{**ZEROS, **changed})


def test_gradients_of_a_convolution_refuse_sizes_beyond_every_tensor():
    kernel, images = tf.zeros([3, 3, 0, 2]), tf.zeros([1, 4, 4, 0])
    of_kernel = native.ops().resnet_conv2d_kernel_gradient
    of_input = native.ops().resnet_conv2d_input_gradient
    with pytest.raises(REFUSED, match="at least one channel"):
        of_kernel(images=images, gradient=OUTPUTS, kernel_size=3, stride=1)
    with pytest.raises(REFUSED, match="at least one channel"):
        of_input(images_shape=[1, 4, 4, 0], kernel=kernel, gradient=OUTPUTS, stride=1)
    huge, kernel = [2**31 - 1, 2**31 - 1, 1, 1], tf.zeros([1, 1, 1, 8])
    with pytest.raises(REFUSED, match="expected outputs of shape"):
        of_input(images_shape=huge, kernel=kernel, gradient=OUTPUTS, stride=1)
    images = ZEROS["images"]
    with pytest.raises(REFUSED, match=r"overflow|too many elements"):
        of_kernel(images=images, gradient=OUTPUTS, kernel_size=2**32, stride=1)


@pytest.mark.parametrize(("side", "stride"), [(0, 1), (1, 2)])
def test_images_smaller_than_a_window_have_no_maximum(side, stride):
    images = tf.zeros([1, side, side, 3])
    maxima, places = native.ops().resnet_max_pool(
        x=images, window=[4, 4], stride=stride, padding="symmetric"
    )
    assert maxima.shape == places.shape == (1, 0, 0, 3)


def test_normalization_takes_at_most_one_residual():
    x, ones = tf.zeros([2, 2, 2, 8]), tf.ones([8])
    of_both = {"x": x, "gamma": ones, "beta": ones, "relu": False}
    forward = {"residual": [x, x], "num_copies": 1, "epsilon": 1e-5}
    backward = {"dy": [x], "mean": ones, "inverse_stddev": ones, "num_residuals": 2}
    with pytest.raises(REFUSED, match="num_residuals must be 0 or 1; got 2"):
        native.ops().resnet_batch_norm(**of_both, **forward)
    with pytest.raises(REFUSED, match="num_residuals must be 0 or 1; got 2"):
        native.ops().resnet_batch_norm_grad(
            positive=tf.zeros([0], tf.uint8), **of_both, **backward
        )


def momentum(variable: tf.Variable, **changed) -> None:
    arguments = {
        "variables": [variable.handle],
        "velocities": [tf.Variable(tf.zeros([3])).handle],
        "gradients": [tf.ones([3])],
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov_momentum": 0.9,
        "nesterov": False,
        "weight_decays": [0.0],
    }
    native.ops().resnet_momentum(**{**arguments, **changed})


def test_momentum_takes_scalars_float32_variables_and_a_decay_for_each():
    for name in ("learning_rate", "momentum", "nesterov_momentum"):
        with pytest.raises(REFUSED, match=r"must be scalars; got \[2\]"):
            momentum(tf.Variable(tf.ones([3])), **{name: tf.constant([0.1, 0.2])})
    with pytest.raises(REFUSED, match="variable 0 must be float32; it is bfloat16"):
        momentum(tf.Variable(tf.ones([3], tf.bfloat16)))
    with pytest.raises(REFUSED, match="one value for each of 1 variables; got 2"):
        momentum(tf.Variable(tf.ones([3])), weight_decays=[0.0, 0.0])


def resize(image: tf.Tensor, size: object, mirror: object = False) -> tf.Tensor:
    return native.ops().resnet_resize_bicubic(
        image, size, mirror, mean=[0.0] * 3, stddev=[1.0] * 3
    )


def test_resizing_takes_a_vector_and_a_scalar():
    image = tf.zeros([5, 5, 3], tf.uint8)
    with pytest.raises(REFUSED, match=r"size must be a vector|rank 1|rank 2"):
        resize(image, 4)
    with pytest.raises(REFUSED, match="size must be a vector and mirror a scalar"):
        resize(image, [4, 4], [True])


@pytest.mark.slow
def test_an_image_with_rows_beyond_two_gib_is_resized():
    height = 2**14
    width = 2**31 // (3 * (height - 1)) + 1  # So the last row begins at 2 GiB.
    image = tf.fill([height, width, 3], tf.constant(200, tf.uint8))
    np.testing.assert_allclose(resize(image, [height, 1]), 200, rtol=1e-5)
