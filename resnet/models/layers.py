"""The layers of the networks: normalized convolution, pooling, classifier.

They compute in the dtype of their inputs, float32 or bfloat16, and keep their variables
in float32. Images and feature maps are `[batch, height, width, channels]`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from resnet.models import convolution, moving_averages, normalization, pooling


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
            filters: Number of output channels.
            kernel_size: Height and width of the kernel.
            stride: Stride in both dimensions.
            batch_norm_momentum: Momentum of the moving averages, in [0, 1).
            seed: Seed of the initial kernel.
            name: Name of the layer, the first part of its variables' paths.
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
            keras.initializers.VarianceScaling(seed=self.seed),  # As in the TPU recipe.
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
            images: `[batch, height, width, channels]`, float32 or bfloat16.
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
        outputs, mean, variance = normalization.batch_norm(
            self.convolve(images),
            *self.scale_and_shift(),
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
            moving_averages.update(average, statistic, self.batch_norm_momentum)

    def _call_in_inference(
        self, images: tf.Tensor, residual: tf.Tensor | None
    ) -> list[tf.Tensor]:
        kernel, bias = self.folded()
        outputs = convolution.conv2d(
            images, kernel, self.stride, bias, residual, self.relu
        )
        return [outputs] * self.num_copies

    def folded(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the kernel and bias of inference, which contain the normalization."""
        scale = tf.math.rsqrt(self.moving_variance.value + self.epsilon)
        if not self.fixed_gamma:
            scale = self.gamma.value * scale
        mean = self.moving_mean.value
        if self.use_bias:
            mean = mean - self.bias.value
        return self.kernel.value * scale, self.beta.value - mean * scale

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Any
    ) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the shape of `call`'s result, or a list of `num_copies` shapes."""
        height, width = (-(-side // self.stride) for side in input_shape[1:3])
        shape = (input_shape[0], height, width, self.filters)
        return shape if self.num_copies == 1 else [shape] * self.num_copies


class MaxPool(Layer):
    """Max pooling with "SAME" padding, as in the TPU recipe, or as much on all sides.

    With images of even size, a window of 3 and a stride of 2, "SAME" pads only after
    the images. PyTorch's networks pad before them, too.
    """

    def __init__(
        self, window: int, stride: int, name: str, is_symmetric: bool = False
    ) -> None:
        """Stores the settings of the layer.

        Args:
            window: Height and width of the window, odd if `is_symmetric`.
            stride: Stride in both dimensions.
            name: Name of the layer.
            is_symmetric: Whether to pad all sides with `(window - 1) / 2` positions.
        """
        super().__init__(name)
        self.window = window
        self.stride = stride
        self.is_symmetric = is_symmetric

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / stride), ceil(width / stride), channels]`."""
        window = [self.window, self.window]
        padding = "symmetric" if self.is_symmetric else "same"
        return pooling.max_pool(images, window, self.stride, padding)


class GlobalMaxPool(Layer):
    """Max pooling over all positions; needs inputs of static height and width."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, 1, 1, channels]`."""
        return pooling.max_pool(images, images.shape[1:3], 1, "valid")


class AvgPool(Layer):
    """2x2 average pooling of stride 2; padding doesn't count in the averages.

    TensorFlow's own op and its gradient are fast in both dtypes and round only the
    averages.
    """

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, ceil(height / 2), ceil(width / 2), channels]`."""
        return tf.nn.avg_pool2d(images, 2, 2, "SAME")


class Add(Layer):
    """The sum of two inputs of the same shape."""

    def call(self, images: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        """Returns the elementwise sum."""
        return images + residual


class Cast(Layer):
    """The cast of the images to the dtype that the network computes in."""

    def __init__(self, to: str, name: str) -> None:
        super().__init__(name)
        self.to = to

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the images, shape unchanged, in the dtype `to`."""
        return tf.cast(images, self.to)


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
