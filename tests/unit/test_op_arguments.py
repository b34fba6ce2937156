"""Arguments that the compiled ops can't use are errors, and never end the process.

Also at the limits of numbers and memory, and beyond them.
"""

import mmap
import os
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from tests.processes import completed

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


def test_momentum_takes_no_variable_twice():
    weight, *others = (tf.Variable(tf.ones([3])) for _ in range(3))
    own, other, velocity = weight.handle, others[0].handle, others[1].handle
    for weights, velocities in (
        ([own], [own]),
        ([own, own], [velocity, other]),
        ([own, other], [velocity, velocity]),
    ):
        both = {"gradients": [tf.ones([3])] * len(weights)}
        both |= {"weight_decays": [0.0] * len(weights)}
        with pytest.raises(REFUSED, match="must be distinct"):
            momentum(weight, variables=weights, velocities=velocities, **both)
    np.testing.assert_array_equal(weight, np.ones(3))


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


FARTHEST = 2**63 - 1


def convolve(stride: int) -> None:
    images, kernel = tf.zeros([1, 4, 4, 3]), tf.zeros([3, 3, 3, 2])
    native.ops().resnet_conv2d(images, kernel, [], [], [], stride=stride)


def input_gradient(stride: int) -> None:
    native.ops().resnet_conv2d_input_gradient(
        images_shape=[1, 4, 4, 3],
        kernel=tf.zeros([3, 3, 3, 2]),
        gradient=tf.zeros([1, 1, 1, 2]),
        stride=stride,
    )


def kernel_gradient(stride: int) -> None:
    native.ops().resnet_conv2d_kernel_gradient(
        images=tf.zeros([1, 4, 4, 3]),
        gradient=tf.zeros([1, 1, 1, 2]),
        kernel_size=3,
        stride=stride,
    )


def max_pool(stride: int) -> None:
    images = tf.zeros([1, 4, 4, 3])
    native.ops().resnet_max_pool(x=images, window=[2, 2], stride=stride, padding="same")


def max_pool_gradient(stride: int) -> None:
    native.ops().resnet_max_pool_grad(
        dy=tf.zeros([1, 1, 1, 3]),
        places=tf.zeros([1, 1, 1, 3], tf.uint8),
        x_shape=[1, 4, 4, 3],
        window=[2, 2],
        stride=stride,
        padding="same",
    )


@pytest.mark.parametrize(
    "call", [convolve, input_gradient, kernel_gradient, max_pool, max_pool_gradient]
)
def test_strides_are_below_two_to_the_31(call):
    for stride in (2**31, FARTHEST - 1, FARTHEST):
        with pytest.raises(REFUSED, match=rf"stride .* below 2\^31; got {stride}"):
            call(stride)
    call(2**31 - 1)


@pytest.mark.parametrize("size", [[2**31 - 1] * 2, [2**28 + 1, 1], [1, 2**31 - 1]])
def test_images_are_resized_to_at_most_two_to_the_28(size):
    with pytest.raises(REFUSED, match="numbers from 1 to 268435456"):
        resize(tf.zeros([5, 5, 3], tf.uint8), size)


def test_images_without_pixels_may_have_too_many_channels():
    x, gate = tf.zeros([2**40, 0, 1, 2**40]), tf.zeros([1, 1])
    with pytest.raises(REFUSED, match=r"overflow|too many elements"):
        native.ops().resnet_global_mean(x)
    with pytest.raises(REFUSED, match=r"overflow|too many elements"):
        native.ops().resnet_activate(x, [gate], [x], num_copies=1, activation="relu")


def test_gates_of_images_without_pixels_have_no_gradient():
    x = tf.zeros([3, 0, 5, 4])
    gradients = native.ops().resnet_activate_grad(
        [x], x, [tf.ones([3, 4])], [x], activation="silu"
    )
    np.testing.assert_array_equal(gradients.dgate[0], np.zeros([3, 4]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ["silu", "mish", "gelu"])
def test_far_below_zero_activations_and_their_slopes_are_zero(activation, dtype):
    far = [-np.inf, -3e38, -1e30, -1e4]
    x = tf.reshape(tf.cast([*far, 1e4, np.inf], dtype), [1, 1, 1, 6])
    ones = tf.ones_like(x)
    if activation == "gelu":
        y = native.ops().resnet_gelu(x, U=x.dtype)
        slopes = native.ops().resnet_gelu_grad(ones, x)
    else:
        (y,) = native.ops().resnet_activate(
            x, [], [], num_copies=1, activation=activation
        )
        slopes = (
            native.ops()
            .resnet_activate_grad([ones], x, [], [], activation=activation)
            .dx
        )
    zeros, above = tf.split(y, [4, 2], axis=-1)
    np.testing.assert_array_equal(tf.cast(zeros, "float32"), np.zeros([1, 1, 1, 4]))
    np.testing.assert_array_equal(above, x[..., 4:])
    slopes = tf.cast(slopes[..., :5], "float32")
    np.testing.assert_array_equal(slopes, [[[[0, 0, 0, 0, 1]]]])


STREAM = tf.constant([1, 2, 3, 4], tf.int64)


def encode_ternary(values: tf.Tensor) -> Any:
    return native.ops().resnet_encode_ternary(values, STREAM)


def encode_qsgd(values: tf.Tensor, states: int = 2**23, bucket: int = 0) -> Any:
    return native.ops().resnet_encode_qsgd(
        values, STREAM, states=states, bucket=bucket, norm="max"
    )


def untouched(size: int) -> tf.Tensor:
    """A vector whose memory is mapped, and not used until somebody reads it."""
    values = np.frombuffer(mmap.mmap(-1, 4 * size), np.float32)
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())


@pytest.mark.parametrize("encode", [encode_ternary, encode_qsgd])
def test_vectors_are_coded_up_to_the_limit_of_dense_messages(encode):
    with pytest.raises(REFUSED, match=r"at most 2\^29 - 3 values; got 536870910"):
        encode(untouched(2**29 - 2))


def test_messages_with_many_norms_have_less_than_two_gib():
    with pytest.raises(REFUSED, match=r"less than 2\^31 bytes; .* would have 2850"):
        encode_qsgd(untouched(400_000_000), bucket=1)


def with_byte(message: tf.Tensor, place: int, byte: int) -> tf.Tensor:
    changed = message.numpy()
    changed[place] = byte
    return tf.constant(changed)


@pytest.mark.parametrize(
    ("encode", "words"),
    [
        (encode_ternary, "five ternary digits is above 242"),
        (lambda values: encode_qsgd(values, states=5), "level 10"),
    ],
)
def test_what_decoding_refuses_is_not_cut(encode, words):
    size = 70_000
    message = encode(tf.zeros([size])).message

    def decode(whole: tf.Tensor) -> None:
        native.ops().resnet_decode_mean(whole, num_vectors=1, sizes=[size], num_ranks=1)

    def cut(whole: tf.Tensor) -> None:
        native.ops().resnet_cut_message(whole, sizes=[40_000, 30_000])

    decode(message)
    cut(message)
    for place in (100, len(message) - 1):
        corrupt = with_byte(message, place, 0xFF)
        for read in (decode, cut):
            with pytest.raises(tf.errors.DataLossError, match=words):
                read(corrupt)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(REFUSED, match=f"{path} is no regular file"):
            native.ops().resnet_read_example(str(path), 0, image_key="a", label_key="b")


def test_the_library_exports_what_python_calls_alone():
    words = ["nm", "-D", "--defined-only", str(native.OPS_LIBRARY)]
    done = completed(words, check=True)
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    assert names == [name for name in names if re.fullmatch(r"resnet_\w+", name)]
    assert "resnet_limit_instruction_set" in names


@pytest.mark.slow
def test_an_image_with_rows_beyond_two_gib_is_resized():
    height = 2**14
    width = 2**31 // (3 * (height - 1)) + 1  # So the last row begins at 2 GiB.
    image = tf.fill([height, width, 3], tf.constant(200, tf.uint8))
    np.testing.assert_allclose(resize(image, [height, 1]), 200, rtol=1e-5)
