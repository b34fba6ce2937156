"""Convolution, pooling and batch normalization, in this order."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from resnet.models.layers import convolution, pooling
from resnet.models.layers.conv_norm import ConvNorm

SIDE = 2  # Side and stride of the windows.


class PooledConvNorm(ConvNorm):
    """A `ConvNorm` with max pooling of 2x2 windows in front of the normalization.

    Rows and columns that fill no window are left out. The normalization has only a
    quarter of the values to process. Since gamma is the constant 1, it increases with
    its inputs, and the pooling may come after it, too: in inference it is folded into
    the convolution, as in `ConvNorm`.

    Source: Jordan 2024, arXiv:2404.00498.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        """Stores the settings of the layer, which are those of `ConvNorm`.

        Raises:
            ValueError: If gamma is not fixed, or the layer has several outputs.
        """
        super().__init__(*args, **given)
        if not self.fixed_gamma or self.num_copies > 1:
            raise ValueError(
                f"expected fixed_gamma and num_copies=1 for layer {self.name}, got"
                f" fixed_gamma={self.fixed_gamma} and num_copies={self.num_copies}; a"
                " negative gamma would turn the largest value into the smallest"
            )

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, as `ConvNorm.convolve`."""
        return pool(super().convolve(images))

    def _call_in_inference(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        scale, bias = self.scale_and_bias()
        kernel = self.kernel.value
        outputs = convolution.conv2d(images, kernel, self.stride, bias, scale=scale)
        outputs = pool(outputs)
        if residual is not None:
            outputs = outputs + residual
        return [tf.nn.relu(outputs) if self.relu else outputs]

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Any
    ) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the shape of `call`'s result."""
        height, width = (-(-side // self.stride) // SIDE for side in input_shape[1:3])
        return input_shape[0], height, width, self.filters


def pool(images: tf.Tensor) -> tf.Tensor:
    """Returns the maxima, `[batch, height // 2, width // 2, channels]`."""
    return pooling.max_pool(images, [SIDE, SIDE], SIDE, "valid")


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
