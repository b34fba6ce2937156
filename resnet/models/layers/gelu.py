"""The Gaussian error linear unit (GELU), in one pass over its inputs.

gelu(x) = x * Phi(x), with the distribution function Phi of the normal distribution.

Source: Hendrycks and Gimpel 2016, arXiv:1606.08415, without an approximation.
"""

from typing import Any

import keras
import tensorflow as tf

from resnet import native
from resnet.models.layers.base import Layer


class Gelu(Layer):
    """GELU, whose results may have another dtype than its inputs."""

    def __init__(self, to: str, name: str) -> None:
        """Stores the settings of the layer.

        Args:
            to: The dtype of the results, "float32" or "bfloat16".
            name: Name of the layer.
        """
        super().__init__(name)
        self.to = to

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns GELU of each value, in the dtype `to`."""
        return gelu(images, self.to)

    def compute_output_spec(self, images: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the shape and dtype of `call`'s result."""
        return keras.KerasTensor(images.shape, self.to)


def gelu(x: tf.Tensor, to: str) -> tf.Tensor:
    """Returns GELU of each value.

    Args:
        x: Numbers of any shape, float32 or bfloat16; computation is in float32.
        to: The dtype of the results, float32 or bfloat16.
    """
    library = native.ops()
    if library is None:
        return gelu_with_stock_ops(x, to)
    return library.resnet_gelu(x=x, U=to)


def gelu_with_stock_ops(x: tf.Tensor, to: str) -> tf.Tensor:
    """Returns the result of `gelu`, computed by TensorFlow's own ops.

    This is the reference implementation of the compiled op, and the fallback where that
    op can't be used.
    """
    return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32)), to)


@tf.RegisterGradient("ResnetGelu")
def _gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    library: Any = native.ops()
    return library.resnet_gelu_grad(dy=dy, x=op.inputs[0])
