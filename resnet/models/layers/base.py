"""What all layers have in common: float32 variables, and no casts but their own.

Layers compute in the dtype of their inputs, float32 or bfloat16, and keep their
variables in float32. Images and feature maps are `[batch, height, width, channels]`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


class Layer(keras.layers.Layer):
    """A Keras layer without automatic casts of its inputs or variables."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, autocast=False, dtype="float32")

    def add_float(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Any,
        trainable: bool = True,
    ) -> Any:
        """Adds a float32 variable to this layer and returns it."""
        return self.add_weight(
            name=name,
            shape=tuple(shape),
            initializer=initializer,
            trainable=trainable,
            dtype="float32",
            autocast=False,
        )


class Cast(Layer):
    """The cast of the images to the dtype that the network computes in."""

    def __init__(self, to: str, name: str) -> None:
        super().__init__(name)
        self.to = to

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the images, shape unchanged, in the dtype `to`."""
        return tf.cast(images, self.to)
