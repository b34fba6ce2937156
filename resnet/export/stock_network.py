"""A network of this project, built again of stock Keras layers for an export.

The graph of the network is walked, and each of its layers is replaced by stock layers
with the same weights. So the result loads without this project, whether the compiled
ops are installed or not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from resnet.base.errors import UserError
from resnet.export.contents import Contents
from resnet.models import layers, mlp
from resnet.models.layers.pooled_conv_norm import SIDE

# Keras' policy by precision and by whether batch normalization is folded. Only weights
# in float32 can be trained on.
_POLICIES = {
    ("bf16", True): "bfloat16",
    ("bf16", False): "mixed_bfloat16",
}

# The largest difference of a probability that rounding explains.
_TOLERANCE = 1e-3
_TOLERANCE_OF_BF16 = 0.2


def build(model: keras.Model, contents: Contents) -> keras.Model:
    """Returns a Keras model from images to the probabilities of the classes.

    Its input "images" is `[batch, image_size, image_size, 3]` float32: RGB from 0 to
    255, cropped and resized. Its output is `[batch, num_classes]` float32.

    Args:
        model: The network, as `models.build` returns it.
        contents: The description of the export.

    Raises:
        TypeError: If the network has a layer without a stock counterpart.
        RuntimeError: If the result doesn't compute what the network computes.
    """
    network = keras.models.clone_model(
        model,
        clone_function=lambda layer: layer,
        call_function=_StockLayers(model, contents),
    )
    (logits,) = network.outputs
    softmax = keras.layers.Softmax(name="probabilities", dtype="float32")
    stock = keras.Model(network.input, softmax(logits), name=model.name)
    _check(model, stock, contents)
    return stock


def _check(model: keras.Model, stock: keras.Model, contents: Contents) -> None:
    """Compares the probabilities of two networks for images of noise.

    So a counterpart that misses an option of a layer is found before its export is.

    Raises:
        UserError: If the network predicts NaN or infinity.
        RuntimeError: If they differ.
    """
    shape = (2, contents.image_size, contents.image_size, 3)
    images = np.random.default_rng(0).uniform(0, 255, shape).astype(np.float32)
    mean, stddev = contents.channel_mean, contents.channel_stddev
    normalized = ((images / 255 - mean) / stddev).astype(np.float32)
    expected = keras.ops.softmax(model(normalized, training=False)).numpy()
    if not np.isfinite(expected).all():
        raise UserError(
            f"the exported {model.name} must have finite weights; it predicts NaN or"
            " infinity, so its training has diverged. Export another checkpoint"
            " (--step)."
        )
    difference = np.abs(stock(images, training=False).numpy() - expected).max()
    casts = [layer.to for layer in model.layers if isinstance(layer, layers.Cast)]
    is_rounded = "bf16" in contents.precision or "bfloat16" in casts
    if not difference <= (_TOLERANCE_OF_BF16 if is_rounded else _TOLERANCE):
        raise RuntimeError(
            f"the exported {model.name} must compute the probabilities of the network;"
            f" they differ by {difference:.2g}. Its counterpart of a layer is wrong."
        )


class _StockLayers:
    """Calls the stock counterparts of layers, one after the other."""

    def __init__(self, model: keras.Model, contents: Contents) -> None:
        """Prepares the calls.

        Args:
            model: The network whose layers are replaced.
            contents: The description of the export.
        """
        self._images = model.inputs[0]
        self._contents = contents
        key = contents.precision, contents.is_folded
        self._dtype = _POLICIES.get(key, "float32")
        self._counterparts: dict[type, Callable[..., Any]] = {
            layers.Cast: self._cast,
            layers.ConvNorm: self._conv_norm,
            layers.PooledConvNorm: self._pooled_conv_norm,
            layers.Whitening: self._whitening,
            layers.Gelu: self._gelu,
            layers.MaxPool: self._max_pool,
            layers.GlobalMaxPool: self._global_max_pool,
            layers.AvgPool: self._avg_pool,
            layers.Add: self._add,
            layers.ZeroPadShortcut: self._zero_pad_shortcut,
            layers.Classifier: self._classifier,
            layers.ScaledLinear: self._scaled_linear,
            layers.ProjectedPool: self._projected_pool,
            layers.Concat: self._concat,
            layers.Conv: self._conv,
            layers.Flatten: self._flatten,
            layers.Dense: self._dense,
            layers.Dropout: self._dropout,
            mlp.Gray: self._gray,
            layers.Activation: self._activation,
            layers.BlurPool: self._blur_pool,
            layers.GlobalAvgPool: self._global_avg_pool,
            layers.Gate: self._gate,
        }

    def __call__(
        self, layer: layers.Layer, *inputs: Any, training: bool | None = None
    ) -> Any:
        """Returns the outputs of the stock counterpart of a layer.

        Args:
            layer: The layer to replace.
            inputs: The arguments of its call, of which those that are tensors belong to
                the new network.
            training: Unused: Keras passes it to each stock layer.
        """
        counterpart = self._counterparts.get(type(layer))
        if counterpart is None:
            raise TypeError(f"no stock counterpart of {type(layer).__name__}")
        return counterpart(layer, *inputs)

    def _cast(self, layer: layers.Cast, x: Any) -> Any:
        """The cast of the images becomes their normalization; stock layers cast."""
        if layer.input is not self._images:
            return x
        mean = np.array(self._contents.channel_mean)
        stddev = np.array(self._contents.channel_stddev)
        return keras.layers.Rescaling(
            (1 / (255 * stddev)).tolist(),
            (-mean / stddev).tolist(),
            name="normalization",
            dtype="float32",
        )(x)

    def _conv_norm(self, layer: layers.ConvNorm, x: Any, *residual: Any) -> Any:
        if self._contents.is_folded:
            x = self._convolution(layer, x, *layer.folded())
        else:
            bias = layer.bias if layer.use_bias else None
            x = self._convolution(layer, x, layer.kernel, bias)
            x = self._batch_norm(layer, x)
        return self._rest(layer, x, *residual)

    def _pooled_conv_norm(
        self, layer: layers.PooledConvNorm, x: Any, *residual: Any
    ) -> Any:
        if self._contents.is_folded:
            x = self._pool(layer, self._convolution(layer, x, *layer.folded()))
        else:
            bias = layer.bias if layer.use_bias else None
            x = self._pool(layer, self._convolution(layer, x, layer.kernel, bias))
            x = self._batch_norm(layer, x)
        return self._rest(layer, x, *residual)

    def _pool(self, layer: layers.PooledConvNorm, x: Any) -> Any:
        return keras.layers.MaxPooling2D(
            SIDE, SIDE, "valid", name=f"{layer.name}_pool", dtype=self._dtype
        )(x)

    def _rest(self, layer: layers.ConvNorm, x: Any, *residual: Any) -> Any:
        """Returns what follows the normalization."""
        name = layer.name
        for one in residual:
            x = keras.layers.Add(name=f"{name}_sum", dtype=self._dtype)([x, one])
        if layer.relu:
            x = keras.layers.ReLU(name=f"{name}_relu", dtype=self._dtype)(x)
        return x if layer.num_copies == 1 else [x] * layer.num_copies

    def _whitening(self, layer: layers.Whitening, x: Any) -> Any:
        convolution = keras.layers.Conv2D(
            layer.filters,
            layer.kernel_size,
            kernel_initializer="zeros",
            name=layer.name,
            dtype="float32",
        )
        return _called(convolution, x, [layer.kernel, layer.bias])

    def _gelu(self, layer: layers.Gelu, x: Any) -> Any:
        dtype = "float32" if x.dtype == "float32" else self._dtype
        return keras.layers.Activation("gelu", name=layer.name, dtype=dtype)(x)

    def _projected_pool(self, layer: layers.ConvNorm, x: Any) -> Any:
        """The pool comes first here, so that the convolution can have the bias."""
        name = layer.name
        pad = keras.layers.ZeroPadding2D(1, name=f"{name}_pad", dtype=self._dtype)
        pool = keras.layers.AveragePooling2D(
            3, 1, "valid", name=f"{name}_pool", dtype=self._dtype
        )
        return self._conv_norm(layer, pool(pad(x)))

    def _batch_norm(self, layer: layers.ConvNorm, x: Any) -> Any:
        normalization = keras.layers.BatchNormalization(
            momentum=layer.batch_norm_momentum,
            epsilon=layer.epsilon,
            scale=not layer.fixed_gamma,
            name=f"{layer.name}_bn",
            dtype=self._dtype,
        )
        gamma = [] if layer.fixed_gamma else [layer.gamma]
        weights = [*gamma, layer.beta, layer.moving_mean, layer.moving_variance]
        return _called(normalization, x, weights)

    def _convolution(
        self, layer: layers.ConvNorm | layers.Conv, x: Any, kernel: Any, bias: Any
    ) -> Any:
        """Returns a convolution with the fixed padding of `layers.convolution`."""
        size, name = layer.kernel_size, layer.name
        padding = "same"
        if layer.stride > 1 and size > 1:  # "same" would depend on the images' size.
            before = (size - 1) // 2
            sides = (before, size - 1 - before)
            x = keras.layers.ZeroPadding2D(
                (sides, sides), name=f"{name}_pad", dtype=self._dtype
            )(x)
            padding = "valid"
        convolution = keras.layers.Conv2D(
            layer.filters,
            size,
            layer.stride,
            padding,
            use_bias=bias is not None,
            kernel_initializer="zeros",
            name=name,
            dtype=self._dtype,
        )
        return _called(convolution, x, [kernel] if bias is None else [kernel, bias])

    def _conv(self, layer: layers.Conv, x: Any) -> Any:
        x = self._convolution(layer, x, layer.kernel, layer.bias)
        return keras.layers.ReLU(name=f"{layer.name}_relu", dtype=self._dtype)(x)

    def _constant_convolution(self, x: Any, kernel: Any, stride: int, name: str) -> Any:
        """Returns a 1x1 convolution whose kernel is not trained."""
        convolution = keras.layers.Conv2D(
            kernel.shape[-1],
            1,
            stride,
            use_bias=False,
            kernel_initializer="zeros",
            trainable=False,
            name=name,
            dtype=self._dtype,
        )
        return _called(convolution, x, [kernel[np.newaxis, np.newaxis]])

    def _zero_pad_shortcut(self, layer: layers.ZeroPadShortcut, x: Any) -> Any:
        """A part of the identity matrix copies the channels and appends zeros."""
        identity = np.eye(x.shape[-1], layer.filters, dtype=np.float32)
        return self._constant_convolution(x, identity, layer.stride, layer.name)

    def _gray(self, layer: mlp.Gray, x: Any) -> Any:
        thirds = np.full((3, 1), 1 / 3, np.float32)
        return self._constant_convolution(x, thirds, 1, layer.name)

    def _max_pool(self, layer: layers.MaxPool, x: Any) -> Any:
        padding, name = "same", layer.name
        if layer.is_symmetric:
            pad = keras.layers.ZeroPadding2D(
                (layer.window - 1) // 2, name=f"{name}_pad", dtype=self._dtype
            )
            padding, x = "valid", pad(x)
        return keras.layers.MaxPooling2D(
            layer.window, layer.stride, padding, name=name, dtype=self._dtype
        )(x)

    def _global_max_pool(self, layer: layers.GlobalMaxPool, x: Any) -> Any:
        return keras.layers.GlobalMaxPooling2D(name=layer.name, dtype=self._dtype)(x)

    def _avg_pool(self, layer: layers.AvgPool, x: Any) -> Any:
        return keras.layers.AveragePooling2D(
            2, 2, "same", name=layer.name, dtype=self._dtype
        )(x)

    def _global_avg_pool(self, layer: layers.GlobalAvgPool, x: Any) -> Any:
        return keras.layers.GlobalAveragePooling2D(name=layer.name, dtype=self._dtype)(
            x
        )

    def _blur_pool(self, layer: layers.BlurPool, x: Any) -> Any:
        """[1, 2, 1] / 4 is the average over two positions, twice."""
        name = layer.name
        x = keras.layers.ZeroPadding2D(1, name=f"{name}_pad", dtype=self._dtype)(x)
        x = keras.layers.AveragePooling2D(
            2, 1, "valid", name=f"{name}_average", dtype=self._dtype
        )(x)
        return keras.layers.AveragePooling2D(
            2, layer.stride, "valid", name=name, dtype=self._dtype
        )(x)

    def _activation(self, layer: layers.Activation | layers.Gate, x: Any) -> Any:
        x = keras.layers.Activation(
            layer.activation, name=layer.name, dtype=self._dtype
        )(x)
        return x if layer.num_copies == 1 else [x] * layer.num_copies

    def _gate(self, layer: layers.Gate, x: Any, logits: Any, residual: Any) -> Any:
        name = layer.name
        shape = (1, 1, x.shape[-1])
        gate = keras.layers.Activation(
            "sigmoid", name=f"{name}_sigmoid", dtype=self._dtype
        )(logits)
        gate = keras.layers.Reshape(shape, name=f"{name}_shape", dtype=self._dtype)(
            gate
        )
        x = keras.layers.Multiply(name=f"{name}_product", dtype=self._dtype)([x, gate])
        x = keras.layers.Add(name=f"{name}_sum", dtype=self._dtype)([x, residual])
        return self._activation(layer, x)

    def _add(self, layer: layers.Add, *inputs: Any) -> Any:
        return keras.layers.Add(name=layer.name, dtype=self._dtype)(list(inputs))

    def _concat(self, layer: layers.Concat, inputs: Sequence[Any]) -> Any:
        return keras.layers.Concatenate(name=layer.name, dtype=self._dtype)(inputs)

    def _flatten(self, layer: layers.Flatten, x: Any) -> Any:
        return keras.layers.Flatten(name=layer.name, dtype=self._dtype)(x)

    def _dropout(self, layer: layers.Dropout, x: Any) -> Any:
        if self._contents.is_folded:
            return x
        return keras.layers.Dropout(layer.rate, name=layer.name, dtype=self._dtype)(x)

    def _dense(self, layer: layers.Dense, x: Any) -> Any:
        return self._linear(layer, x, layer.kernel, layer.bias, self._dtype, layer.relu)

    def _classifier(self, layer: layers.Classifier, x: Any) -> Any:
        # In float32 also in a network of bfloat16, as its logits are.
        pool = keras.layers.GlobalAveragePooling2D(
            name=f"{layer.name}_pool", dtype="float32"
        )
        return self._linear(layer, pool(x), layer.kernel, layer.bias, "float32")

    def _scaled_linear(self, layer: layers.ScaledLinear, x: Any) -> Any:
        if self._contents.is_folded:
            kernel = layer.kernel * layer.scale
            return self._linear(layer, x, kernel, None, "float32")
        x = self._linear(layer, x, layer.kernel, None, "float32")
        return keras.layers.Rescaling(
            layer.scale, name=f"{layer.name}_scale", dtype="float32"
        )(x)

    def _linear(
        self,
        layer: layers.Layer,
        x: Any,
        kernel: Any,
        bias: Any,
        dtype: str,
        relu: bool = False,
    ) -> Any:
        dense = keras.layers.Dense(
            kernel.shape[-1],
            "relu" if relu else None,
            use_bias=bias is not None,
            kernel_initializer="zeros",
            name=layer.name,
            dtype=dtype,
        )
        return _called(dense, x, [kernel] if bias is None else [kernel, bias])


def _called(layer: keras.layers.Layer, x: Any, weights: Sequence[Any]) -> Any:
    """Returns the outputs of a new layer, which gets these weights."""
    outputs = layer(x)
    layer.set_weights([keras.ops.convert_to_tensor(one).numpy() for one in weights])
    return outputs
