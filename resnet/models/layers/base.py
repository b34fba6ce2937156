"""The base of all layers, and those of few lines: casts, branches, dense layers.

Layers compute in the dtype of their inputs, float32 or bfloat16, and keep their
variables in float32. Images and feature maps are `[batch, height, width, channels]`.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


class Layer(keras.layers.Layer):
    """A Keras layer without automatic casts of its inputs or variables."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, autocast=False, dtype="float32")

    def add_float(
        self, name: str, shape: Sequence[int], initializer: Any, trainable: bool = True
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
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_float("kernel", shape, self._initializer())
        self.bias = self.add_float("bias", (self.units,), "zeros")

    def _initializer(self) -> keras.Initializer:
        return keras.initializers.VarianceScaling(seed=self.seed)

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, units]`, in the dtype of the features."""
        outputs = tf.matmul(features, tf.cast(self.kernel.value, features.dtype))
        outputs = tf.nn.bias_add(outputs, tf.cast(self.bias.value, outputs.dtype))
        return tf.nn.relu(outputs) if self.relu else outputs


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
