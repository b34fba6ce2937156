"""The multilayer perceptron for MNIST's handwritten digits of 28 pixels.

Two hidden layers of 128 and 64 units with ReLU.

Source: dmlc/mxnet, the MLP of its examples for MNIST (dist_sync_mlp.py). The one
difference: weights are initialized as in the other networks of this package, unless
`models.build` is told otherwise.
"""

import keras
import tensorflow as tf

from resnet.models import layers
from resnet.models.options import NetworkOptions

HIDDEN_UNITS = (128, 64)


class Gray(layers.Layer):
    """The mean of the color channels, since the source's images are gray."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, height, width, 1]`."""
        return tf.reduce_mean(images, -1, keepdims=True)


def build(
    _: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of float32 images, all of whose pixels it takes."""
    seed = options.seeds()
    x = layers.Cast(options.compute_dtype, name="cast")(images)
    x = layers.Flatten("flatten")(Gray("gray")(x))
    for number, units in enumerate(HIDDEN_UNITS, start=1):
        x = layers.Dense(units, seed(), f"dense{number}", relu=True)(x)
    logits = layers.Dense(options.num_classes, seed(), "classifier")(x)
    return layers.Cast("float32", name="logits")(logits)
