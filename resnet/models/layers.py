"""The layers of the networks: convolution, fused normalization, pooling, classifier.

They compute in the dtype of what comes in, float32 or bfloat16, and keep their
variables in float32. Images are `[batch, height, width, channels]`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

BATCH_NORM_EPSILON = 1e-5  # As in the TPU recipe.


class Layer(keras.layers.Layer):
    """A layer that casts neither its inputs nor its variables by itself."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, autocast=False, dtype="float32")

    def add_float(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Any,
        trainable: bool = True,
    ) -> Any:
        """Returns a new float32 variable of this layer."""
        return self.add_weight(
            name=name,
            shape=tuple(shape),
            initializer=initializer,
            trainable=trainable,
            dtype="float32",
            autocast=False,
        )


class Conv2D(Layer):
    """A convolution without bias, its padding independent of the input's size.

    `(kernel_size - 1) // 2` zeros before, the rest of `kernel_size - 1` after, in both
    directions, for every stride (the TPU recipe's `fixed_padding`). As a pad and a
    convolution without padding it stays inside oneDNN forward and backward, which
    explicit padding of the convolution does not.
    """

    def __init__(
        self, filters: int, kernel_size: int, stride: int, seed: int, name: str
    ) -> None:
        super().__init__(name)
        self.filters = filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.seed = seed

    def build(self, input_shape: Sequence[int]) -> None:
        """Makes the kernel, `[kernel_size, kernel_size, channels, filters]`."""
        self.kernel = self.add_float(
            "kernel",
            (self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            keras.initializers.VarianceScaling(seed=self.seed),  # As the TPU recipe's.
        )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), filters]`."""
        before = (self.kernel_size - 1) // 2
        after = self.kernel_size - 1 - before
        if self.kernel_size > 1:
            images = tf.pad(images, [[0, 0], [before, after], [before, after], [0, 0]])
        kernel = tf.cast(self.kernel.value, images.dtype)
        return tf.nn.conv2d(images, kernel, self.stride, "VALID")

    def compute_output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of what `call` returns."""
        height, width = (-(-side // self.stride) for side in input_shape[1:3])
        return (input_shape[0], height, width, self.filters)


class BatchNorm(Layer):
    """Batch normalization, then the sum with a residual and ReLU where asked for.

    In training it normalizes by the mean and variance of this rank's batch and moves
    its averages towards them; the variance that it keeps is the unbiased one, as in the
    fused op of TensorFlow 1, the TPU recipe's. Otherwise it normalizes by the averages.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    def __init__(
        self, decay: float, name: str, relu: bool = True, zero_gamma: bool = False
    ) -> None:
        super().__init__(name)
        self.decay = decay
        self.relu = relu
        self.zero_gamma = zero_gamma

    def build(self, input_shape: Sequence[int], *_: Any) -> None:
        """Makes scale, offset and the averages, each `[channels]`."""
        shape = (input_shape[-1],)
        self.gamma = self.add_float(
            "gamma", shape, "zeros" if self.zero_gamma else "ones"
        )
        self.beta = self.add_float("beta", shape, "zeros")
        self.moving_mean = self.add_float("moving_mean", shape, "zeros", False)
        self.moving_variance = self.add_float("moving_variance", shape, "ones", False)

    def call(
        self,
        images: tf.Tensor,
        residual: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Returns the normalized images, `residual` added to them before the ReLU."""
        mean = [] if training else self.moving_mean.value
        variance = [] if training else self.moving_variance.value
        images, batch_mean, batch_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=images,
            scale=self.gamma.value,
            offset=self.beta.value,
            mean=mean,
            variance=variance,
            epsilon=BATCH_NORM_EPSILON,
            is_training=training,
        )
        if training:
            for average, new in (
                (self.moving_mean.value, batch_mean),
                (self.moving_variance.value, batch_variance),
            ):
                average.assign_sub((average - new) * (1 - self.decay))
        if residual is not None:
            images = images + residual
        return tf.nn.relu(images) if self.relu else images

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Any
    ) -> tuple[int, ...]:
        """Returns the shape of what `call` returns."""
        return tuple(input_shape)


class MaxPool(Layer):
    """The maximum of each 3x3 window, every second one ("SAME", as the TPU recipe)."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / 2), ceil(width / 2), channels]`."""
        return tf.nn.max_pool2d(images, 3, 2, "SAME")


class Cast(Layer):
    """The images in the dtype that the network computes in."""

    def __init__(self, compute_dtype: str, name: str) -> None:
        super().__init__(name)
        self.to = compute_dtype

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the images, cast."""
        return tf.cast(images, self.to)


class Classifier(Layer):
    """The mean over all places, then a dense layer with bias."""

    def __init__(self, num_classes: int, seed: int, name: str) -> None:
        super().__init__(name)
        self.num_classes = num_classes
        self.seed = seed

    def build(self, input_shape: Sequence[int]) -> None:
        """Makes the kernel, `[channels, num_classes]`, and the bias."""
        self.kernel = self.add_float(
            "kernel",
            (input_shape[-1], self.num_classes),
            keras.initializers.RandomNormal(stddev=0.01, seed=self.seed),
        )
        self.bias = self.add_float("bias", (self.num_classes,), "zeros")

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the logits, `[batch, num_classes]`, float32."""
        features = tf.reduce_mean(images, axis=[1, 2])
        logits = tf.matmul(features, tf.cast(self.kernel.value, features.dtype))
        return tf.cast(logits, tf.float32) + self.bias.value
