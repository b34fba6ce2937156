"""The layers of Inception that other networks don't have: concatenation, projection."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from resnet.models import convolution
from resnet.models.layers import ConvNorm, Layer


@tf.custom_gradient
def average_pool(images: tf.Tensor) -> Any:
    """Returns the averages of 3x3 windows at all positions, of the images' shape.

    The zeros around the images count in the averages, as in the source. So the pool is
    its own gradient.

    Args:
        images: `[batch, height, width, channels]`.
    """
    return _average_pool(images), _average_pool


def _average_pool(images: tf.Tensor) -> tf.Tensor:
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return tf.nn.avg_pool2d(padded, 3, 1, "VALID")


class ProjectedPool(ConvNorm):
    """Average pooling of 3x3 windows, then a 1x1 convolution with `ConvNorm`'s rest.

    Both are linear, so the convolution comes first here: its filters are far fewer than
    the channels of the images, and pooling them takes less time.
    """

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, as `ConvNorm.convolve`."""
        return average_pool(super().convolve(images))

    def _call_in_inference(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        scale, bias = self.scale_and_bias()
        kernel = self.kernel.value
        outputs = convolution.conv2d(images, kernel, self.stride, scale=scale)
        outputs = average_pool(outputs)
        outputs = tf.nn.bias_add(outputs, tf.cast(bias, outputs.dtype))
        if residual is not None:
            outputs = outputs + residual
        return [tf.nn.relu(outputs) if self.relu else outputs] * self.num_copies


class Concat(Layer):
    """The concatenation of the channels of several feature maps."""

    def call(self, images: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns `[batch, height, width, sum of all channels]`."""
        return tf.concat(images, -1)
