"""A convolution without bias, its padding independent of the input's size.

`(kernel_size - 1) // 2` zeros before, the rest of `kernel_size - 1` after, in both
directions, for every stride (the TPU recipe's `fixed_padding`).
"""

from typing import Any

import tensorflow as tf

from resnet import native
from resnet.models import normalization


def conv2d(
    images: tf.Tensor,
    kernel: tf.Tensor,
    stride: int,
    bias: tf.Tensor | None = None,
    residual: tf.Tensor | None = None,
    relu: bool = False,
) -> tf.Tensor:
    """Returns `[batch, ceil(height / stride), ceil(width / stride), filters]`.

    It is of the images' dtype. Bias, residual and ReLU, in this order, are done before
    the result is rounded and stored.

    Args:
        images: `[batch, height, width, channels]`, float32 or bfloat16.
        kernel: `[size, size, channels, filters]`, float32; rounded to the images'.
        stride: Of both directions.
        bias: `[filters]`, float32, or None.
        residual: What to add, shaped like the result and of its dtype, or None.
        relu: Whether negative results become 0.
    """
    library = native.convolutions(images.dtype)
    if library is None:
        return conv2d_with_stock_ops(images, kernel, stride, bias, residual, relu)
    return library.resnet_conv2d(
        images=images,
        kernel=kernel,
        bias=[] if bias is None else [bias],
        residual=[] if residual is None else [residual],
        stride=stride,
        relu=relu,
    )


def conv2d_with_stock_ops(
    images: tf.Tensor,
    kernel: tf.Tensor,
    stride: int,
    bias: tf.Tensor | None = None,
    residual: tf.Tensor | None = None,
    relu: bool = False,
) -> tf.Tensor:
    """Returns what `conv2d` does, made of TensorFlow's own ops.

    As a pad and a convolution without padding it stays inside oneDNN forward and
    backward, which explicit padding of the convolution does not.
    """
    size = kernel.shape[0]
    before = (size - 1) // 2
    after = size - 1 - before
    if size > 1:
        images = tf.pad(images, [[0, 0], [before, after], [before, after], [0, 0]])
    images = tf.nn.conv2d(images, tf.cast(kernel, images.dtype), stride, "VALID")
    if bias is not None:
        images = tf.nn.bias_add(images, tf.cast(bias, images.dtype))
    if residual is not None:
        images = images + residual
    return tf.nn.relu(images) if relu else images


@tf.RegisterGradient("ResnetConv2D")
def _gradients(op: tf.Operation, gradient: tf.Tensor) -> list[tf.Tensor]:
    """Returns the gradients of images, kernel, and bias and residual if there are."""
    images, kernel = op.inputs[:2]
    stride = op.get_attr("stride")
    library: Any = native.ops()
    if op.get_attr("relu"):
        gradient = tf.where(op.outputs[0] > 0, gradient, tf.zeros_like(gradient))
    kernel_gradient = library.resnet_conv2d_kernel_gradient(
        images=normalization.computed_again(images, gradient),
        gradient=gradient,
        kernel_size=kernel.shape[0],
        stride=stride,
    )
    # In this order ranks can average the kernel's gradient while they go on, and no
    # images wait in memory for a kernel gradient that was put off.
    with tf.control_dependencies([kernel_gradient]):
        images_gradient = library.resnet_conv2d_input_gradient(
            images_shape=tf.shape(images),
            kernel=kernel,
            gradient=gradient,
            stride=stride,
        )
    gradients = [images_gradient, kernel_gradient]
    if op.get_attr("num_biases"):
        gradients.append(tf.reduce_sum(tf.cast(gradient, tf.float32), [0, 1, 2]))
    if op.get_attr("num_residuals"):
        gradients.append(gradient)
    return gradients
