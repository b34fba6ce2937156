"""What the compiled ops refuse at the limits of numbers and memory, and beyond them."""

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
FARTHEST = 2**63 - 1


def ops() -> Any:
    return native.ops()


def convolve(stride: int) -> None:
    images, kernel = tf.zeros([1, 4, 4, 3]), tf.zeros([3, 3, 3, 2])
    ops().resnet_conv2d(images, kernel, [], [], [], stride=stride)


def input_gradient(stride: int) -> None:
    ops().resnet_conv2d_input_gradient(
        images_shape=[1, 4, 4, 3],
        kernel=tf.zeros([3, 3, 3, 2]),
        gradient=tf.zeros([1, 1, 1, 2]),
        stride=stride,
    )


def kernel_gradient(stride: int) -> None:
    ops().resnet_conv2d_kernel_gradient(
        images=tf.zeros([1, 4, 4, 3]),
        gradient=tf.zeros([1, 1, 1, 2]),
        kernel_size=3,
        stride=stride,
    )


def max_pool(stride: int) -> None:
    images = tf.zeros([1, 4, 4, 3])
    ops().resnet_max_pool(x=images, window=[2, 2], stride=stride, padding="same")


def max_pool_gradient(stride: int) -> None:
    ops().resnet_max_pool_grad(
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


def resize(size: list[int]) -> None:
    image = tf.zeros([5, 5, 3], tf.uint8)
    ops().resnet_resize_bicubic(
        image, size, mirror=False, mean=[0.0] * 3, stddev=[1.0] * 3
    )


@pytest.mark.parametrize("size", [[2**31 - 1] * 2, [2**28 + 1, 1], [1, 2**31 - 1]])
def test_images_are_resized_to_at_most_two_to_the_28(size):
    with pytest.raises(REFUSED, match="numbers from 1 to 268435456"):
        resize(size)


def test_images_without_pixels_may_have_too_many_channels():
    x, gate = tf.zeros([2**40, 0, 1, 2**40]), tf.zeros([1, 1])
    with pytest.raises(REFUSED, match=r"overflow|too many elements"):
        ops().resnet_global_mean(x)
    with pytest.raises(REFUSED, match=r"overflow|too many elements"):
        ops().resnet_activate(x, [gate], [x], num_copies=1, activation="relu")


def test_gates_of_images_without_pixels_have_no_gradient():
    x = tf.zeros([3, 0, 5, 4])
    gradients = ops().resnet_activate_grad(
        [x], x, [tf.ones([3, 4])], [x], activation="silu"
    )
    np.testing.assert_array_equal(gradients.dgate[0], np.zeros([3, 4]))


def variables(count: int) -> list[Any]:
    return [tf.Variable(tf.ones([3])) for _ in range(count)]


def test_momentum_takes_no_variable_twice():
    weight, other, velocity = variables(3)
    for weights, velocities in (
        ([weight], [weight]),
        ([weight, weight], [velocity, other]),
        ([weight, other], [velocity, velocity]),
    ):
        with pytest.raises(REFUSED, match="must be distinct"):
            ops().resnet_momentum(
                [variable.handle for variable in weights],
                [variable.handle for variable in velocities],
                gradients=[tf.ones([3])] * len(weights),
                learning_rate=0.1,
                momentum=0.9,
                nesterov_momentum=0.9,
                nesterov=False,
                weight_decays=[0.0] * len(weights),
            )
    np.testing.assert_array_equal(weight, np.ones(3))


@pytest.mark.parametrize("twice", [(0, 1), (0, 2), (2, 3), (0, 4), (4, 5), (3, 6)])
def test_a_server_takes_no_variable_twice(twice):
    given = [*variables(6), tf.Variable(tf.zeros([9], tf.int64))]
    given[twice[1]] = given[twice[0]]
    handles = [variable.handle for variable in given]
    ones = [tf.ones([3])] * 2
    with pytest.raises(REFUSED, match="must be distinct"):
        ops().resnet_server_update(
            *(handles[:2], handles[2:4], ones, handles[4:6], ones, handles[6]),
            number=tf.constant(5, tf.int64),
            read_at=tf.constant(0, tf.int64),
            learning_rate=0.1,
            momentum=0.9,
            nesterov_momentum=0.9,
            nesterov=False,
            inverse_staleness=False,
            average_step=0.1,
            weight_decays=[0.0, 0.0],
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ["silu", "mish", "gelu"])
def test_far_below_zero_activations_and_their_slopes_are_zero(activation, dtype):
    far = [-np.inf, -3e38, -1e30, -1e4]
    x = tf.reshape(tf.cast([*far, 1e4, np.inf], dtype), [1, 1, 1, 6])
    ones = tf.ones_like(x)
    if activation == "gelu":
        y = ops().resnet_gelu(x, U=x.dtype)
        slopes = ops().resnet_gelu_grad(ones, x)
    else:
        (y,) = ops().resnet_activate(x, [], [], num_copies=1, activation=activation)
        slopes = ops().resnet_activate_grad([ones], x, [], [], activation=activation).dx
    zeros, above = tf.split(y, [4, 2], axis=-1)
    np.testing.assert_array_equal(tf.cast(zeros, "float32"), np.zeros([1, 1, 1, 4]))
    np.testing.assert_array_equal(above, x[..., 4:])
    slopes = tf.cast(slopes[..., :5], "float32")
    np.testing.assert_array_equal(slopes, [[[[0, 0, 0, 0, 1]]]])


STREAM = tf.constant([1, 2, 3, 4], tf.int64)


def encode_ternary(values: tf.Tensor) -> Any:
    return ops().resnet_encode_ternary(values, STREAM)


def encode_qsgd(values: tf.Tensor, states: int = 2**23, bucket: int = 0) -> Any:
    return ops().resnet_encode_qsgd(
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
        ops().resnet_decode_mean(whole, num_vectors=1, sizes=[size], num_ranks=1)

    def cut(whole: tf.Tensor) -> None:
        ops().resnet_cut_message(whole, sizes=[40_000, 30_000])

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
            ops().resnet_read_example(str(path), 0, image_key="a", label_key="b")


def test_the_library_exports_what_python_calls_alone():
    words = ["nm", "-D", "--defined-only", str(native.OPS_LIBRARY)]
    done = completed(words, check=True)
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    assert names == [name for name in names if re.fullmatch(r"resnet_\w+", name)]
    assert "resnet_limit_instruction_set" in names
