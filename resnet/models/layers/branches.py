"""What joins the branches of a network: sum, concatenation and shortcut."""

from collections.abc import Sequence

import tensorflow as tf

from resnet.models.layers.base import Layer


class Add(Layer):
    """The sum of two inputs of the same shape."""

    def call(self, images: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        """Returns the elementwise sum."""
        return images + residual


class Concat(Layer):
    """The concatenation of the channels of several feature maps."""

    def call(self, images: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns `[batch, height, width, sum of all channels]`."""
        return tf.concat(images, -1)


class ZeroPadShortcut(Layer):
    """An identity shortcut without parameters to a smaller, deeper feature map.

    It subsamples the positions and appends channels of zeros.

    Source: He et al. 2015, arXiv:1512.03385, section 3.3, option A; the zeros come last
    as in facebookarchive/fb.resnet.torch, models/resnet.lua.
    """

    def __init__(self, filters: int, stride: int, name: str) -> None:
        super().__init__(name)
        self.filters = filters
        self.stride = stride

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), filters]`."""
        images = images[:, :: self.stride, :: self.stride]
        num_zeros = self.filters - images.shape[-1]
        # In inference, TensorFlow 2.21's layout pass for oneDNN mistakes a Pad of a
        # fused convolution's residual for one of its images, and crashes. It ignores
        # PadV2.
        return tf.raw_ops.PadV2(
            input=images,
            paddings=[[0, 0], [0, 0], [0, 0], [0, num_zeros]],
            constant_values=tf.zeros([], images.dtype),
        )
