"""The layers of the networks: normalized convolution, pooling, classifier.

They compute in the dtype of what comes in, float32 or bfloat16, and keep their
variables in float32. Images are `[batch, height, width, channels]`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from resnet.models import convolution, normalization


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


class ConvNorm(Layer):
    """A convolution, its normalization, the sum with a residual, and ReLU.

    In training it normalizes by the mean and variance of this rank's batch and moves
    its averages towards them; the variance that it keeps is the unbiased one, as in the
    fused op of TensorFlow 1, the TPU recipe's. Otherwise it normalizes by the averages:
    as factors of the kernel and as a bias, so that the normalization costs nothing.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        stride: int,
        decay: float,
        seed: int,
        name: str,
        relu: bool = True,
        zero_gamma: bool = False,
        num_copies: int = 1,
    ) -> None:
        """Makes the layer.

        Args:
            filters: Channels of the result.
            kernel_size: Side of the kernel.
            stride: Of both directions.
            decay: Of the moving averages.
            seed: Of the initial kernel.
            name: Of the layer.
            relu: Whether negative results become 0.
            zero_gamma: Whether the scale starts at 0 rather than at 1.
            num_copies: How often the result is returned: once for each layer that takes
                it, so that their gradients are summed in the backward pass of this one.
        """
        super().__init__(name)
        self.filters = filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.decay = decay
        self.seed = seed
        self.relu = relu
        self.zero_gamma = zero_gamma
        self.num_copies = num_copies

    def build(self, input_shape: Sequence[int], *_: Any) -> None:
        """Makes the kernel, `[size, size, channels, filters]`, and the `[filters]`."""
        self.kernel = self.add_float(
            "kernel",
            (self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            keras.initializers.VarianceScaling(seed=self.seed),  # As the TPU recipe's.
        )
        shape = (self.filters,)
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
    ) -> tf.Tensor | list[tf.Tensor]:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), filters]`.

        A list of equal ones if there are several copies.
        """
        if training:
            outputs = self._normalized_by_batch(images, residual)
        else:
            outputs = self._normalized_by_averages(images, residual)
        return outputs[0] if self.num_copies == 1 else outputs

    def _normalized_by_batch(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        images = convolution.conv2d(images, self.kernel.value, self.stride)
        outputs, mean, variance = normalization.batch_norm(
            images,
            self.gamma.value,
            self.beta.value,
            residual,
            self.relu,
            self.num_copies,
        )
        for average, new in (
            (self.moving_mean.value, mean),
            (self.moving_variance.value, variance),
        ):
            average.assign_sub((average - new) * (1 - self.decay))
        return list(outputs)

    def _normalized_by_averages(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        variance = self.moving_variance.value
        scale = self.gamma.value * tf.math.rsqrt(variance + normalization.EPSILON)
        outputs = convolution.conv2d(
            images,
            self.kernel.value * scale,
            self.stride,
            self.beta.value - self.moving_mean.value * scale,
            residual,
            self.relu,
        )
        return [outputs] * self.num_copies

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Any
    ) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the shape of what `call` returns, or a list of shapes."""
        height, width = (-(-side // self.stride) for side in input_shape[1:3])
        shape = (input_shape[0], height, width, self.filters)
        return shape if self.num_copies == 1 else [shape] * self.num_copies


class MaxPool(Layer):
    """The maximum of each window of places ("SAME" padding, as the TPU recipe)."""

    def __init__(self, window: int, stride: int, name: str) -> None:
        super().__init__(name)
        self.window = window
        self.stride = stride

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), channels]`."""
        return tf.nn.max_pool2d(images, self.window, self.stride, "SAME")


class MaxOfAll(Layer):
    """The maximum over all places; the batch must tell its height and width."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, 1, 1, channels]`."""
        size = images.shape[1:3]
        return tf.nn.max_pool2d(images, size, size, "VALID")


class AvgPool(Layer):
    """The mean of each two times two places; at an odd side's end, of those there are.

    TensorFlow's own op is fast in both number formats, its gradient too, and rounds
    only the means.
    """

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / 2), ceil(width / 2), channels]`."""
        return tf.nn.avg_pool2d(images, 2, 2, "SAME")


class Sum(Layer):
    """The sum of two equally shaped inputs."""

    def call(self, images: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        """Returns what both add up to."""
        return images + residual


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


class ScaledLinear(Layer):
    """A dense layer without bias for images of one place, its logits scaled."""

    def __init__(self, num_classes: int, scale: float, seed: int, name: str) -> None:
        super().__init__(name)
        self.num_classes = num_classes
        self.scale = scale
        self.seed = seed

    def build(self, input_shape: Sequence[int]) -> None:
        """Makes the kernel, `[channels, num_classes]`."""
        self.kernel = self.add_float(
            "kernel",
            (input_shape[-1], self.num_classes),
            # As PyTorch's default, the source's.
            keras.initializers.VarianceScaling(
                1 / 3, distribution="uniform", seed=self.seed
            ),
        )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the logits, `[batch, num_classes]`, float32."""
        features = tf.squeeze(images, [1, 2])
        logits = tf.matmul(features, tf.cast(self.kernel.value, features.dtype))
        return self.scale * tf.cast(logits, tf.float32)
