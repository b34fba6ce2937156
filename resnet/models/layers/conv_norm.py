"""Convolutions with bias, or with batch normalization, residual addition and ReLU."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from resnet.models.layers import convolution, normalization, pooling
from resnet.models.layers.base import Layer
from resnet.models.options import NormOptions

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

    def build(self, input_shape: Sequence[int], *_: Any) -> None:
        """Creates the kernel, `[size, size, channels, filters]`, and the bias."""
        self.add_kernel(input_shape[-1])
        self.bias = self.add_float("bias", (self.filters,), "zeros")

    def add_kernel(self, channels: int) -> None:
        """Creates the kernel."""
        self.kernel = self.add_float(
            "kernel",
            (self.kernel_size, self.kernel_size, channels, self.filters),
            keras.initializers.VarianceScaling(seed=self.seed),
        )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), filters]`."""
        return convolution.conv2d(
            images, self.kernel.value, self.stride, self.bias.value, relu=True
        )

    def compute_output_shape(self, input_shape: Sequence[int], *_: Any) -> Any:
        """Returns the shape of `call`'s result."""
        height, width = (-(-side // self.stride) for side in input_shape[1:3])
        return input_shape[0], height, width, self.filters


class ConvNorm(Conv):
    """Convolution, batch normalization, optional residual addition and ReLU.

    In training mode it normalizes with the mean and the variance of this rank's batch
    and updates the moving averages: average = m * average + (1 - m) * batch statistic,
    where m is the momentum. The moving variance is that of the unbiased estimates, as
    in TensorFlow 1's fused op, which the TPU recipe uses.

    In inference mode it normalizes with the moving averages, which are folded into the
    convolution's kernel and bias, so the normalization costs nothing.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        stride: int,
        seed: int,
        name: str,
        options: NormOptions,
    ) -> None:
        super().__init__(filters, kernel_size, stride, seed, name)
        self.options = options

    def build(self, input_shape: Sequence[int], *_: Any) -> None:
        """Creates the kernel, `[size, size, channels, filters]`, and its vectors."""
        self.add_kernel(input_shape[-1])
        options, shape = self.options, (self.filters,)
        if options.use_bias:
            self.bias = self.add_float("bias", shape, "zeros")
        if not options.fixed_gamma:
            gamma = "zeros" if options.zero_gamma else "ones"
            self.gamma = self.add_float("gamma", shape, gamma)
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

        With `num_copies` above 1 it returns a list with that many equal tensors. The
        residual, of the shape and dtype of the result, is added before the ReLU.
        """
        if training:
            outputs = self._call_in_training(images, residual)
        else:
            outputs = [self._infer(images, residual)] * self.options.num_copies
        return outputs[0] if self.options.num_copies == 1 else outputs

    def _call_in_training(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        options, beta = self.options, self.beta.value
        x = self.convolve(images)
        gamma = tf.ones([self.filters]) if options.fixed_gamma else self.gamma.value
        if options.use_bias:
            beta = beta + 0 * self.bias.value  # The bias' gradient, which is 0.
        outputs, mean, variance = normalization.batch_norm(
            x, gamma, beta, residual, options.relu, options.num_copies, options.epsilon
        )
        if options.use_bias:
            mean = mean + self.bias.value
        normalization.update_average(self.moving_mean, mean, options.momentum)
        normalization.update_average(self.moving_variance, variance, options.momentum)
        return list(outputs)

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, without the convolution's bias.

        Normalization subtracts the bias again, with the mean.
        """
        return convolution.conv2d(images, self.kernel.value, self.stride)

    def _infer(self, images: tf.Tensor, residual: tf.Tensor | None) -> tf.Tensor:
        scale, bias = self.scale_and_bias()
        return convolution.conv2d(
            images,
            self.kernel.value,
            self.stride,
            bias=bias,
            residual=residual,
            relu=self.options.relu,
            scale=scale,
        )

    def _added(self, outputs: tf.Tensor, residual: tf.Tensor | None) -> tf.Tensor:
        if residual is not None:
            outputs = outputs + residual
        return tf.nn.relu(outputs) if self.options.relu else outputs

    def folded(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the kernel and bias of inference, which contain the normalization."""
        scale, bias = self.scale_and_bias()
        return self.kernel.value * scale, bias

    def scale_and_bias(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the kernel's factors and the bias of inference, `[filters]` each."""
        scale = tf.math.rsqrt(self.moving_variance.value + self.options.epsilon)
        if not self.options.fixed_gamma:
            scale = self.gamma.value * scale
        mean = self.moving_mean.value
        if self.options.use_bias:
            mean = mean - self.bias.value
        return scale, self.beta.value - mean * scale

    def compute_output_shape(self, input_shape: Sequence[int], *_: Any) -> Any:
        """Returns the shape of `call`'s result, or a list of `num_copies` shapes."""
        shape = super().compute_output_shape(input_shape)
        num_copies = self.options.num_copies
        return shape if num_copies == 1 else [shape] * num_copies


class PooledConvNorm(ConvNorm):
    """A `ConvNorm` with max pooling of 2x2 windows in front of the normalization.

    Rows and columns that fill no window are left out. The normalization has only a
    quarter of the values to process. Since gamma is the constant 1, it increases with
    its inputs, and the pooling may come after it, too: in inference it is folded into
    the convolution, as in `ConvNorm`.

    Source: Jordan 2024, arXiv:2404.00498.
    """

    def build(self, input_shape: Sequence[int], *_: Any) -> None:
        """Creates the variables of a `ConvNorm` with one output and a fixed gamma."""
        options = self.options
        if not options.fixed_gamma or options.num_copies > 1:
            raise ValueError(
                f"expected fixed_gamma and num_copies=1 for layer {self.name}, got"
                f" fixed_gamma={options.fixed_gamma} and num_copies="
                f"{options.num_copies}; a negative gamma would turn the largest value"
                " into the smallest"
            )
        super().build(input_shape)

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, as `ConvNorm.convolve`."""
        return _max_pool(super().convolve(images))

    def _infer(self, images: tf.Tensor, residual: tf.Tensor | None) -> tf.Tensor:
        scale, bias = self.scale_and_bias()
        kernel = self.kernel.value
        outputs = convolution.conv2d(images, kernel, self.stride, bias, scale=scale)
        return self._added(_max_pool(outputs), residual)

    def compute_output_shape(self, input_shape: Sequence[int], *_: Any) -> Any:
        """Returns the shape of `call`'s result."""
        batch, height, width, filters = super().compute_output_shape(input_shape)
        return batch, height // POOLED_SIDE, width // POOLED_SIDE, filters


def _max_pool(images: tf.Tensor) -> tf.Tensor:
    return pooling.max_pool(images, [POOLED_SIDE, POOLED_SIDE], POOLED_SIDE, "valid")


class ProjectedPool(ConvNorm):
    """Average pooling of 3x3 windows, then a 1x1 convolution with `ConvNorm`'s rest.

    Both are linear, so the convolution comes first here: its filters are far fewer than
    the channels of the images, and pooling them takes less time.
    """

    def convolve(self, images: tf.Tensor) -> tf.Tensor:
        """Returns what is normalized in training, as `ConvNorm.convolve`."""
        return average_pool(super().convolve(images))

    def _infer(self, images: tf.Tensor, residual: tf.Tensor | None) -> tf.Tensor:
        scale, bias = self.scale_and_bias()
        kernel = self.kernel.value
        outputs = convolution.conv2d(images, kernel, self.stride, scale=scale)
        outputs = average_pool(outputs)
        outputs = tf.nn.bias_add(outputs, tf.cast(bias, outputs.dtype))
        return self._added(outputs, residual)


@tf.custom_gradient
def average_pool(images: tf.Tensor) -> Any:
    """Returns the averages of 3x3 windows at all positions, of the images' shape.

    The zeros around the images, `[batch, height, width, channels]`, count in the
    averages, as in the source. So the pool is its own gradient.
    """
    return _average_pool(images), _average_pool


def _average_pool(images: tf.Tensor) -> tf.Tensor:
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return tf.nn.avg_pool2d(padded, 3, 1, "VALID")
