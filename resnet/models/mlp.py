"""The multilayer perceptron for MNIST's handwritten digits of 28 pixels.

Two hidden layers of 128 and 64 units with ReLU.

Source: dmlc/mxnet, the MLP of its examples for MNIST (dist_sync_mlp.py). The one
difference: weights are initialized as in the other networks of this package, unless
`models.build` is told otherwise.
"""

import random
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from resnet.models import layers

HIDDEN_UNITS = (128, 64)


class Gray(layers.Layer):
    """The mean of the color channels, since the source's images are gray."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, height, width, 1]`."""
        return tf.reduce_mean(images, -1, keepdims=True)


def build(
    num_classes: int,
    image_size: int,
    batch_norm: Mapping[str, Any],
    compute_dtype: str,
    seed: int,
) -> keras.Model:
    """Returns a Keras model from float32 images to float32 logits.

    The first dense layer takes all pixels, so the network takes images of `image_size`
    only.

    Args:
        num_classes: Number of logits.
        image_size: Height and width of the images in pixels.
        batch_norm: Unused; for the same arguments as the other networks.
        compute_dtype: "float32" or "bfloat16"; variables are float32.
        seed: Seed of the initial weights.
    """
    del batch_norm
    generator = random.Random(seed)
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = layers.Cast(compute_dtype, name="cast")(inputs)
    x = layers.Flatten("flatten")(Gray("gray")(x))
    for number, units in enumerate(HIDDEN_UNITS, start=1):
        layer_seed = generator.getrandbits(31)
        x = layers.Dense(units, layer_seed, f"dense{number}", relu=True)(x)
    logits = layers.Dense(num_classes, generator.getrandbits(31), "classifier")(x)
    logits = layers.Cast("float32", name="logits")(logits)
    return keras.Model(inputs, logits, name="mlp")
