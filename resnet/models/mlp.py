"""The multilayer perceptron for MNIST's handwritten digits of 28 pixels.

Two hidden layers of 128 and 64 units with ReLU.

Source: dmlc/mxnet, the MLP of its examples for MNIST (dist_sync_mlp.py). The one
difference: weights are initialized as in the other networks of this package, unless
`models.build` is told otherwise.
"""

import random

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


def build(options: NetworkOptions) -> keras.Model:
    """Returns a Keras model from float32 images to float32 logits.

    The first dense layer takes all pixels, so the network takes images of `image_size`
    only.
    """
    generator = random.Random(options.seed)
    inputs = keras.Input((options.image_size, options.image_size, 3), name="images")
    x = layers.Cast(options.compute_dtype, name="cast")(inputs)
    x = layers.Flatten("flatten")(Gray("gray")(x))
    for number, units in enumerate(HIDDEN_UNITS, start=1):
        layer_seed = generator.getrandbits(31)
        x = layers.Dense(units, layer_seed, f"dense{number}", relu=True)(x)
    classifier = layers.Dense(
        options.num_classes, generator.getrandbits(31), "classifier"
    )
    logits = classifier(x)
    logits = layers.Cast("float32", name="logits")(logits)
    return keras.Model(inputs, logits, name="mlp")
