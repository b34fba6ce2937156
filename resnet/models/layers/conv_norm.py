"""Convolutions with bias, or with batch normalization, residual addition and ReLU."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from resnet.models.layers import convolution, normalization, pooling
from resnet.models.layers.base import Layer

POOLED_SIDE = 2  # Side and stride of the windows of `PooledConvNorm`.


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


class ConvNorm(Layer):
    """Convolution, batch normalization, optional residual addition and ReLU.

    In training mode it normalizes with the mean and the variance of this rank's batch
    and updates the moving averages: average = m * average + (1 - m) * batch statistic,
    where m is `batch_norm_momentum`. The moving variance is that of the unbiased
    estimates, as in TensorFlow 1's fused op, which the TPU recipe uses.

    In inference mode it normalizes with the moving averages, which are folded into the
    convolution's kernel and bias, so the normalization costs nothing.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        stride: int,
        batch_norm_momentum: float,
        seed: int,
        name: str,
        relu: bool = True,
        zero_gamma: bool = False,
        num_copies: int = 1,
        epsilon: float = normalization.EPSILON,
        fixed_gamma: bool = False,
        use_bias: bool = False,
    ) -> None:
        """Stores the settings of the layer.

        Args:
            batch_norm_momentum: Momentum of the moving averages, in [0, 1).
            relu: Whether to apply ReLU to the outputs.
            zero_gamma: Whether gamma, the scale, is initialized to 0 instead of 1.
            num_copies: Number of references to the output that `call` returns. With one
                for each consuming layer, the gradients of all of them are summed inside
                this layer's backward op instead of by an op of their own.
            epsilon: Constant added to the variance before the square root.
            fixed_gamma: Whether gamma is the constant 1 and not a variable, as with
                `scale=False` of Keras' BatchNormalization.
            use_bias: Whether the convolution has a trainable bias, initialized to 0, in
                front of the normalization.

        Raises:
            ValueError: If both `zero_gamma` and `fixed_gamma` are set.
        """
        super().__init__(name)
        if zero_gamma and fixed_gamma:
            raise ValueError(
                f"expected at most one of zero_gamma and fixed_gamma for layer {name},"
                " got both; a fixed gamma is always 1"
            )
        self.filters = filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.batch_norm_momentum = batch_norm_momentum
        self.seed = seed
        self.relu = relu
        self.zero_gamma = zero_gamma
        self.num_copies = num_copies
        self.epsilon = epsilon
        self.fixed_gamma = fixed_gamma
        self.use_bias = use_bias

    def build(self, input_shape: Sequence[int], *_: Any) -> None:
        """Creates the variables.

        The kernel is `[kernel_size, kernel_size, channels, filters]`; bias, gamma, beta
        and the moving averages are `[filters]`.
        """
        self.kernel = self.add_float(
            "kernel",
            (self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            keras.initializers.VarianceScaling(seed=self.seed),
        )
        shape = (self.filters,)
        if self.use_bias:
            self.bias = self.add_float("bias", shape, "zeros")
        if not self.fixed_gamma:
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

        With `num_copies` above 1 it returns a list with that many equal tensors.

        Args:
            residual: Tensor to add before the ReLU, of the shape and dtype of the
                result, or None.
            training: Whether to normalize with the batch's statistics and to update the
                moving averages.
        """
        if training:
            outputs = self._call_in_training(images, residual)
        else:
            outputs = self._call_in_inference(images, residual)
        return outputs[0] if self.num_copies == 1 else outputs

    def _call_in_training(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        gamma, beta = self.scale_and_shift()
        outputs, mean, variance = normalization.batch_norm(
            self.convolve(images),
            gamma,
            beta,
            residual,
            self.relu,
            self.num_copies,
            self.epsilon,
        )
        self.update_averages(mean, variance)
        return list(outputs)

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, without the convolution's bias.

        Normalization subtracts the bias again, with the mean.
        """
        return convolution.conv2d(images, self.kernel.value, self.stride)

    def scale_and_shift(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns gamma and beta in training, each `[filters]`, float32."""
        gamma = tf.ones([self.filters]) if self.fixed_gamma else self.gamma.value
        beta = self.beta.value
        if self.use_bias:
            beta = beta + 0 * self.bias.value  # The bias' gradient, which is 0.
        return gamma, beta

    def update_averages(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Moves the averages towards the moments of a batch.

        Args:
            mean: Mean of the result of `convolve`, `[filters]`.
            variance: Unbiased variance, `[filters]`.
        """
        if self.use_bias:
            mean = mean + self.bias.value
        for average, statistic in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            normalization.update_average(average, statistic, self.batch_norm_momentum)

    def _call_in_inference(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        scale, bias = self.scale_and_bias()
        outputs = convolution.conv2d(
            images,
            self.kernel.value,
            self.stride,
            bias=bias,
            residual=residual,
            relu=self.relu,
            scale=scale,
        )
        return [outputs] * self.num_copies

    def folded(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the kernel and bias of inference, which contain the normalization."""
        scale, bias = self.scale_and_bias()
        return self.kernel.value * scale, bias

    def scale_and_bias(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the kernel's factors and the bias of inference, `[filters]` each."""
        scale = tf.math.rsqrt(self.moving_variance.value + self.epsilon)
        if not self.fixed_gamma:
            scale = self.gamma.value * scale
        mean = self.moving_mean.value
        if self.use_bias:
            mean = mean - self.bias.value
        return scale, self.beta.value - mean * scale

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Any
    ) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the shape of `call`'s result, or a list of `num_copies` shapes."""
        height, width = (-(-side // self.stride) for side in input_shape[1:3])
        shape = (input_shape[0], height, width, self.filters)
        return shape if self.num_copies == 1 else [shape] * self.num_copies


class PooledConvNorm(ConvNorm):
    """A `ConvNorm` with max pooling of 2x2 windows in front of the normalization.

    Rows and columns that fill no window are left out. The normalization has only a
    quarter of the values to process. Since gamma is the constant 1, it increases with
    its inputs, and the pooling may come after it, too: in inference it is folded into
    the convolution, as in `ConvNorm`.

    Source: Jordan 2024, arXiv:2404.00498.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        """Stores the settings of the layer, which are those of `ConvNorm`.

        Raises:
            ValueError: If gamma is not fixed, or the layer has several outputs.
        """
        super().__init__(*args, **given)
        if not self.fixed_gamma or self.num_copies > 1:
            raise ValueError(
                f"expected fixed_gamma and num_copies=1 for layer {self.name}, got"
                f" fixed_gamma={self.fixed_gamma} and num_copies={self.num_copies}; a"
                " negative gamma would turn the largest value into the smallest"
            )

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, as `ConvNorm.convolve`."""
        return _max_pool(super().convolve(images))

    def _call_in_inference(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        scale, bias = self.scale_and_bias()
        kernel = self.kernel.value
        outputs = convolution.conv2d(images, kernel, self.stride, bias, scale=scale)
        outputs = _max_pool(outputs)
        if residual is not None:
            outputs = outputs + residual
        return [tf.nn.relu(outputs) if self.relu else outputs]

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Any
    ) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the shape of `call`'s result."""
        height, width = (
            -(-side // self.stride) // POOLED_SIDE for side in input_shape[1:3]
        )
        return input_shape[0], height, width, self.filters


def _max_pool(images: tf.Tensor) -> tf.Tensor:
    """Returns the maxima, `[batch, height // 2, width // 2, channels]`."""
    return pooling.max_pool(images, [POOLED_SIDE, POOLED_SIDE], POOLED_SIDE, "valid")


class ProjectedPool(ConvNorm):
    """Average pooling of 3x3 windows, then a 1x1 convolution with `ConvNorm`'s rest.

    Both are linear, so the convolution comes first here: its filters are far fewer than
    the channels of the images, and pooling them takes less time.
    """

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, as `ConvNorm.convolve`."""
        return average_pool(super().convolve(images))

    def _call_in_inference(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        scale, bias = self.scale_and_bias()
        kernel = self.kernel.value
        outputs = convolution.conv2d(images, kernel, self.stride, scale=scale)
        outputs = average_pool(outputs)
        outputs = tf.nn.bias_add(outputs, tf.cast(bias, outputs.dtype))
        if residual is not None:
            outputs = outputs + residual
        return [tf.nn.relu(outputs) if self.relu else outputs] * self.num_copies


@tf.custom_gradient
def average_pool(images: tf.Tensor) -> Any:
    """Returns the averages of 3x3 windows at all positions, of the images' shape.

    The zeros around the images count in the averages, as in the source. So the pool is
    its own gradient.

    Args:
        images: `[batch, height, width, channels]`.
    """
    return _average_pool(images), _average_pool


def _average_pool(images: tf.Tensor) -> tf.Tensor:
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return tf.nn.avg_pool2d(padded, 3, 1, "VALID")
