"""Layers without normalization: convolution and dense layers with bias, flattening."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from resnet.models.layers import convolution
from resnet.models.layers.base import Layer


class Conv(Layer):
    """Convolution with bias and ReLU, without normalization."""

    def __init__(
        self, filters: int, kernel_size: int, stride: int, seed: int, name: str
    ) -> None:
        super().__init__(name)
        self.filters = filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.seed = seed

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates the kernel, as that of `ConvNorm`, and the bias."""
        self.kernel = self.add_float(
            "kernel",
            (self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            keras.initializers.VarianceScaling(seed=self.seed),
        )
        self.bias = self.add_float("bias", (self.filters,), "zeros")

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), filters]`."""
        return convolution.conv2d(
            images, self.kernel.value, self.stride, self.bias.value, relu=True
        )

    def compute_output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of `call`'s result."""
        height, width = (-(-side // self.stride) for side in input_shape[1:3])
        return input_shape[0], height, width, self.filters


class Flatten(Layer):
    """All positions and channels of a feature map as one vector."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, height * width * channels]`."""
        return tf.reshape(images, [-1, math.prod(images.shape[1:])])


class Dense(Layer):
    """A dense layer with bias and optional ReLU."""

    def __init__(self, units: int, seed: int, name: str, relu: bool = False) -> None:
        super().__init__(name)
        self.units = units
        self.seed = seed
        self.relu = relu

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates the kernel, `[num_features, units]`, and the bias."""
        self.kernel = self.add_float(
            "kernel",
            (input_shape[-1], self.units),
            keras.initializers.VarianceScaling(seed=self.seed),
        )
        self.bias = self.add_float("bias", (self.units,), "zeros")

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, units]`, in the dtype of the features."""
        outputs = tf.matmul(features, tf.cast(self.kernel.value, features.dtype))
        outputs = tf.nn.bias_add(outputs, tf.cast(self.bias.value, outputs.dtype))
        return tf.nn.relu(outputs) if self.relu else outputs
