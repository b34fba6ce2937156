"""2-D convolution with fixed padding, which doesn't depend on the input's size.

In both dimensions and for every stride it pads with `(kernel_size - 1) // 2` zeros
before the images and with the rest of `kernel_size - 1` zeros after them.

Source: tensorflow/tpu, models/official/resnet/resnet_model.py, fixed_padding.
"""

from typing import Any

import tensorflow as tf

from resnet import native
from resnet.models.layers import normalization


def conv2d(
    images: tf.Tensor,
    kernel: tf.Tensor,
    stride: int,
    bias: tf.Tensor | None = None,
    residual: tf.Tensor | None = None,
    relu: bool = False,
    scale: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns `[batch, ceil(height / stride), ceil(width / stride), filters]`.

    The result has the images' dtype. The kernel, `[size, size, channels, filters]`
    float32, is multiplied by the scale, `[filters]`, and rounded to that dtype. Bias,
    `[filters]` float32, residual (of the result's shape) and ReLU are applied in this
    order, before the result is rounded and stored.
    """
    library = native.fast_ops(images.dtype)
    if library is not None:
        return library.resnet_conv2d(
            images=images,
            kernel=kernel,
            scale=[] if scale is None else [scale],
            bias=[] if bias is None else [bias],
            residual=[] if residual is None else [residual],
            stride=stride,
            relu=relu,
        )
    # The forward and the backward pass of `tf.pad` and an unpadded convolution run in
    # oneDNN, those of a convolution with explicit padding don't.
    size = kernel.shape[0]
    before = (size - 1) // 2
    after = size - 1 - before
    if size > 1:
        images = tf.pad(images, [[0, 0], [before, after], [before, after], [0, 0]])
    scaled = kernel if scale is None else kernel * scale
    rounded = tf.cast(scaled, images.dtype)
    images = tf.nn.conv2d(images, rounded, stride, "VALID")
    if bias is not None:
        images = tf.nn.bias_add(images, tf.cast(bias, images.dtype))
    if residual is not None:
        images = images + residual
    return tf.nn.relu(images) if relu else images


@tf.RegisterGradient("ResnetConv2D")
def _gradients(op: tf.Operation, gradient: tf.Tensor) -> list[tf.Tensor]:
    images, kernel = op.inputs[:2]
    scale = op.inputs[2] if op.get_attr("num_scales") else None
    scaled = kernel if scale is None else kernel * scale
    stride = op.get_attr("stride")
    library: Any = native.ops()
    if op.get_attr("relu"):
        gradient = tf.where(op.outputs[0] > 0, gradient, tf.zeros_like(gradient))
    kernel_gradient = library.resnet_conv2d_kernel_gradient(
        images=normalization.rematerialize(images, gradient),
        gradient=gradient,
        kernel_size=kernel.shape[0],
        stride=stride,
    )
    # The kernel's gradient comes first: its all-reduce overlaps with the rest of the
    # backward pass, and no images stay in memory for a deferred kernel gradient.
    with tf.control_dependencies([kernel_gradient]):
        images_gradient = library.resnet_conv2d_input_gradient(
            images_shape=tf.shape(images),
            kernel=scaled,
            gradient=gradient,
            stride=stride,
        )
    if scale is None:
        gradients = [images_gradient, kernel_gradient]
    else:
        scale_gradient = tf.reduce_sum(kernel_gradient * kernel, [0, 1, 2])
        gradients = [images_gradient, kernel_gradient * scale, scale_gradient]
    if op.get_attr("num_biases"):
        gradients.append(tf.reduce_sum(tf.cast(gradient, tf.float32), [0, 1, 2]))
    if op.get_attr("num_residuals"):
        gradients.append(gradient)
    return gradients
