"""The last layers of networks, which compute the logits."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from resnet.models.layers import pooling
from resnet.models.layers.base import Layer


class Classifier(Layer):
    """Global average pooling, then a dense layer with bias."""

    def __init__(self, num_classes: int, seed: int, name: str) -> None:
        super().__init__(name)
        self.num_classes = num_classes
        self.seed = seed

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates the kernel, `[channels, num_classes]`, and the bias."""
        self.kernel = self.add_float(
            "kernel",
            (input_shape[-1], self.num_classes),
            keras.initializers.RandomNormal(stddev=0.01, seed=self.seed),
        )
        self.bias = self.add_float("bias", (self.num_classes,), "zeros")

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the logits, `[batch, num_classes]`, float32."""
        features = pooling.global_mean(images)
        logits = tf.matmul(features, tf.cast(self.kernel.value, features.dtype))
        return tf.cast(logits, tf.float32) + self.bias.value


class ScaledLinear(Layer):
    """A dense layer without bias that multiplies its logits by a constant.

    Its inputs are `[batch, 1, 1, channels]`.
    """

    def __init__(self, num_classes: int, scale: float, seed: int, name: str) -> None:
        super().__init__(name)
        self.num_classes = num_classes
        self.scale = scale
        self.seed = seed

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates the kernel, `[channels, num_classes]`."""
        self.kernel = self.add_float(
            "kernel",
            (input_shape[-1], self.num_classes),
            # PyTorch's default, which the source uses.
            keras.initializers.VarianceScaling(
                1 / 3, distribution="uniform", seed=self.seed
            ),
        )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the logits, `[batch, num_classes]`, float32."""
        features = tf.squeeze(images, [1, 2])
        logits = tf.matmul(features, tf.cast(self.kernel.value, features.dtype))
        return self.scale * tf.cast(logits, tf.float32)
