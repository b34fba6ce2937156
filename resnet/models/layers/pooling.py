"""Pooling: the maximum or the mean of windows, or of all positions; blurring."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from resnet import native
from resnet.models.layers.base import Dense, Layer

MOST_POSITIONS = 256  # Largest window of the compiled op.


def max_pool(
    images: tf.Tensor, window: Sequence[int], stride: int, padding: str
) -> tf.Tensor:
    """Returns the largest value of each window, `[batch, height, width, channels]`.

    Positions outside of the images are never the largest. NaN is larger than all other
    values. Of several equal largest values the first one gets the gradient.

    The padding is "valid" for windows inside of the images only; "same" for ceil(size /
    stride) windows, as TensorFlow has them; "symmetric" for windows that begin (size of
    the window - 1) / 2 before the images, and end as many positions behind them or
    earlier.
    """
    library = native.ops()
    if library is None or math.prod(window) > MOST_POSITIONS:  # They may lose NaN.
        if padding == "symmetric":
            sides = [[(size - 1) // 2] * 2 for size in window]
            paddings = [[0, 0], *sides, [0, 0]]
            images = tf.pad(images, paddings, constant_values=images.dtype.min)
            padding = "valid"
        return tf.nn.max_pool2d(images, list(window), stride, padding.upper())
    return library.resnet_max_pool(
        x=images, window=list(window), stride=stride, padding=padding
    ).y


@tf.RegisterGradient("ResnetMaxPool")
def _max_pool_gradient(op: tf.Operation, dy: tf.Tensor, _: Any) -> tf.Tensor:
    library: Any = native.ops()
    return library.resnet_max_pool_grad(
        dy=dy,
        places=op.outputs[1],
        x_shape=tf.shape(op.inputs[0]),
        window=op.get_attr("window"),
        stride=op.get_attr("stride"),
        padding=op.get_attr("padding"),
    )


def global_mean(images: tf.Tensor) -> tf.Tensor:
    """Returns the mean over all positions, `[batch, channels]`, added up in float32."""
    library = native.ops()
    if library is None:
        return tf.reduce_mean(images, axis=[1, 2])
    return library.resnet_global_mean(x=images)


@tf.RegisterGradient("ResnetGlobalMean")
def _global_mean_gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    library: Any = native.ops()
    return library.resnet_global_mean_grad(dy=dy, x_shape=tf.shape(op.inputs[0]))


class MaxPool(Layer):
    """Max pooling with "SAME" padding, as in the TPU recipe, or as much on all sides.

    With images of even size, a window of 3 and a stride of 2, "SAME" pads only after
    the images. PyTorch's networks pad before them, too.
    """

    def __init__(
        self, window: int, stride: int, name: str, is_symmetric: bool = False
    ) -> None:
        super().__init__(name)
        self.window = window
        self.stride = stride
        self.is_symmetric = is_symmetric

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), channels]`."""
        window = [self.window, self.window]
        padding = "symmetric" if self.is_symmetric else "same"
        return max_pool(images, window, self.stride, padding)


class GlobalMaxPool(Layer):
    """Max pooling over all positions; needs inputs of static height and width."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, 1, 1, channels]`."""
        return max_pool(images, images.shape[1:3], 1, "valid")


class AvgPool(Layer):
    """2x2 average pooling of stride 2; padding doesn't count in the averages."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / 2), ceil(width / 2), channels]`."""
        return tf.nn.avg_pool2d(images, 2, 2, "SAME")


class GlobalAvgPool(Layer):
    """The mean over all positions."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, channels]`, in the dtype of the images."""
        return global_mean(images)


class Classifier(Dense):
    """Global average pooling, then a dense layer with bias and a unit per class."""

    def _initializer(self) -> keras.Initializer:
        return keras.initializers.RandomNormal(stddev=0.01, seed=self.seed)

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the logits, `[batch, num_classes]`, float32."""
        features = global_mean(images)
        logits = tf.matmul(features, tf.cast(self.kernel.value, features.dtype))
        return tf.cast(logits, tf.float32) + self.bias.value


BLURRED_CHANNELS = 16  # Inputs with fewer aren't blurred, as in both sources.


class BlurPool(Layer):
    """The blurred input, subsampled by a stride.

    [1, 2, 1] / 4 is the average over two positions, twice. TensorFlow's average pooling
    and its gradient are fast in both dtypes; its depthwise convolution takes ten times
    as long for the gradient in bfloat16.
    """

    def __init__(self, stride: int, name: str) -> None:
        super().__init__(name)
        self.stride = stride

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), channels]`."""
        padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
        averages = tf.nn.avg_pool2d(padded, 2, 1, "VALID")
        return tf.nn.avg_pool2d(averages, 2, self.stride, "VALID")
