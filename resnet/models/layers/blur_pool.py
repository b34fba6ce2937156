"""Blurring of feature maps in front of strided layers (BlurPool).

The filter is [1, 2, 1] / 4 in both dimensions, and zeros are around the images. A
strided convolution whose input has at least 16 channels takes the blurred input; the
max pooling of the stem takes the maximum at each position, blurs, and subsamples.

Source: Zhang 2019, arXiv:1904.11486; which layers it applies to as in
mosaicml/composer, composer/algorithms/blurpool (blur_first), and, without the max
pooling, in libffcv/ffcv-imagenet, train_imagenet.py.
"""

import tensorflow as tf

from resnet.models.layers.base import Layer

FEWEST_CHANNELS = 16  # Inputs with fewer aren't blurred, as in both sources.


class BlurPool(Layer):
    """The blurred input, subsampled by a stride."""

    def __init__(self, stride: int, name: str) -> None:
        """Stores the settings of the layer.

        Args:
            stride: Stride in both dimensions, 1 or 2.
            name: Name of the layer.
        """
        super().__init__(name)
        self.stride = stride

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), channels]`."""
        return blur(images, self.stride)


def blur(images: tf.Tensor, stride: int) -> tf.Tensor:
    """Returns `[batch, ceil(height / stride), ceil(width / stride), channels]`.

    [1, 2, 1] / 4 is the average over two positions, twice. TensorFlow's average pooling
    and its gradient are fast in both dtypes; its depthwise convolution takes ten times
    as long for the gradient in bfloat16.

    Args:
        images: `[batch, height, width, channels]`, float32 or bfloat16.
        stride: Stride in both dimensions.
    """
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
    averages = tf.nn.avg_pool2d(padded, 2, 1, "VALID")
    return tf.nn.avg_pool2d(averages, 2, stride, "VALID")
