"""A network of this project, built again of stock Keras layers for an export.

The graph of the network is walked, and each of its layers is replaced by stock layers
with the same weights. So the result loads without this project, whether the compiled
ops are installed or not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers as stock

from resnet.base.errors import UserError
from resnet.evaluation.predictor import probabilities_of
from resnet.export.contents import Contents
from resnet.models import layers, mlp
from resnet.models.layers.conv_norm import POOLED_SIDE

# The largest difference of a probability that rounding explains.
_TOLERANCE = 1e-3
_TOLERANCE_OF_BF16 = 0.2


def build(model: keras.Model, contents: Contents) -> keras.Model:
    """Returns a Keras model from images to the probabilities of the classes.

    Its input "images" is `[batch, image_size, image_size, 3]` float32: RGB from 0 to
    255, cropped and resized. Its output is `[batch, num_classes]` float32, by a softmax
    or, of several labels an image, a sigmoid. Raises
    TypeError if the network has a layer without a stock counterpart, and RuntimeError
    if the result doesn't compute what the network computes.
    """
    network = keras.models.clone_model(
        model,
        clone_function=lambda layer: layer,
        call_function=_StockLayers(model, contents),
    )
    (logits,) = network.outputs
    kind = "sigmoid" if contents.multi_label else "softmax"
    activation = stock.Activation(kind, name="probabilities", dtype="float32")
    exported = keras.Model(network.input, activation(logits), name=model.name)
    _check(model, exported, contents)
    return exported


def _check(model: keras.Model, exported: keras.Model, contents: Contents) -> None:
    """Compares the probabilities of two networks for images of noise.

    So a counterpart that misses an option of a layer is found before its export is.
    Raises UserError if the network predicts NaN or infinity.
    """
    shape = (2, contents.image_size, contents.image_size, 3)
    images = np.random.default_rng(0).uniform(0, 255, shape).astype(np.float32)
    mean, stddev = contents.channel_mean, contents.channel_stddev
    normalized = ((images / 255 - mean) / stddev).astype(np.float32)
    logits = model(normalized, training=False)
    expected = probabilities_of(logits, contents.multi_label).numpy()
    if not np.isfinite(expected).all():
        raise UserError(
            f"the exported {model.name} must have finite weights; it predicts NaN or"
            " infinity, so its training has diverged. Export another checkpoint"
            " (--step)."
        )
    difference = np.abs(exported(images, training=False).numpy() - expected).max()
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
        self._images = model.inputs[0]
        self._contents = contents
        self._dtype = "float32"
        if contents.precision == "bf16":  # Only weights in float32 can be trained on.
            self._dtype = "bfloat16" if contents.is_folded else "mixed_bfloat16"
        self._counterparts: dict[type, Callable[..., Any]] = {
            layers.Cast: self._cast,
            layers.ConvNorm: self._conv_norm,
            layers.PooledConvNorm: self._conv_norm,
            layers.ProjectedPool: self._projected_pool,
            layers.Conv: self._conv,
            layers.Whitening: self._whitening,
            layers.ZeroPadShortcut: self._zero_pad_shortcut,
            mlp.Gray: self._gray,
            layers.MaxPool: self._max_pool,
            layers.AvgPool: self._avg_pool,
            layers.BlurPool: self._blur_pool,
            layers.GlobalMaxPool: self._same(stock.GlobalMaxPooling2D),
            layers.GlobalAvgPool: self._same(stock.GlobalAveragePooling2D),
            layers.Gelu: self._gelu,
            layers.Activation: self._activation,
            layers.Gate: self._gate,
            layers.Add: self._add,
            layers.Concat: self._same(stock.Concatenate),
            layers.Flatten: self._same(stock.Flatten),
            layers.Dropout: self._dropout,
            layers.Dense: self._dense,
            layers.Classifier: self._classifier,
            layers.ScaledLinear: self._scaled_linear,
        }

    def __call__(
        self, layer: layers.Layer, *inputs: Any, training: bool | None = None
    ) -> Any:
        """Returns the outputs of a layer's counterpart; Keras passes `training`."""
        counterpart = self._counterparts.get(type(layer))
        if counterpart is None:
            raise TypeError(f"no stock counterpart of {type(layer).__name__}")
        return counterpart(layer, *inputs)

    def _stock(
        self,
        kind: type[stock.Layer],
        layer: layers.Layer,
        x: Any,
        part: str = "",
        dtype: str = "",
        weights: Sequence[Any] = (),
        **settings: Any,
    ) -> Any:
        """Returns the outputs of a new stock layer.

        The part ends its name, if it isn't the only one with that of the layer.
        """
        name = f"{layer.name}_{part}" if part else layer.name
        new = kind(name=name, dtype=dtype or self._dtype, **settings)
        outputs = new(x)
        if weights:
            arrays = map(keras.ops.convert_to_tensor, weights)
            new.set_weights([array.numpy() for array in arrays])
        return outputs

    def _same(self, kind: type[stock.Layer]) -> Callable[..., Any]:
        """Returns a function that calls a stock layer without settings."""
        return lambda layer, x: self._stock(kind, layer, x)

    def _weighted(
        self,
        kind: type[stock.Layer],
        layer: layers.Layer,
        x: Any,
        kernel: Any,
        bias: Any = None,
        **settings: Any,
    ) -> Any:
        """Returns the outputs of a convolution or dense layer with these weights."""
        return self._stock(
            kind,
            layer,
            x,
            weights=[kernel] if bias is None else [kernel, bias],
            use_bias=bias is not None,
            kernel_initializer="zeros",
            **settings,
        )

    def _convolution(
        self, layer: layers.Layer, x: Any, kernel: Any, bias: Any, **settings: Any
    ) -> Any:
        settings |= {"filters": kernel.shape[3], "kernel_size": tuple(kernel.shape[:2])}
        return self._weighted(stock.Conv2D, layer, x, kernel, bias, **settings)

    def _linear(
        self, layer: layers.Layer, x: Any, kernel: Any, bias: Any, **settings: Any
    ) -> Any:
        # In float32 also in a network of bfloat16, as its logits are.
        settings = {"dtype": "float32", "units": kernel.shape[-1], **settings}
        return self._weighted(stock.Dense, layer, x, kernel, bias, **settings)

    def _pad(self, layer: layers.Layer, x: Any, padding: Any) -> Any:
        return self._stock(stock.ZeroPadding2D, layer, x, "pad", padding=padding)

    def _average(
        self, layer: layers.Layer, x: Any, size: int, stride: int, **settings: Any
    ) -> Any:
        settings |= {"pool_size": size, "strides": stride}
        return self._stock(stock.AveragePooling2D, layer, x, **settings)

    def _cast(self, layer: layers.Cast, x: Any) -> Any:
        """The cast of the images becomes their normalization; stock layers cast."""
        if layer.input is not self._images:
            return x
        mean = np.array(self._contents.channel_mean)
        stddev = np.array(self._contents.channel_stddev)
        scale, offset = (1 / (255 * stddev)).tolist(), (-mean / stddev).tolist()
        return stock.Rescaling(scale, offset, name="normalization", dtype="float32")(x)

    def _conv_norm(self, layer: layers.ConvNorm, x: Any, *residuals: Any) -> Any:
        is_folded, options = self._contents.is_folded, layer.options
        kernel, bias = layer.kernel, layer.bias if options.use_bias else None
        if is_folded:
            kernel, bias = layer.folded()
        x = self._padded_convolution(layer, x, kernel, bias)
        if isinstance(layer, layers.PooledConvNorm):
            x = self._stock(stock.MaxPooling2D, layer, x, "pool", pool_size=POOLED_SIDE)
        if not is_folded:
            x = self._batch_norm(layer, x)
        for residual in residuals:
            x = self._stock(stock.Add, layer, [x, residual], "sum")
        if options.relu:
            x = self._stock(stock.ReLU, layer, x, "relu")
        return x if options.num_copies == 1 else [x] * options.num_copies

    def _projected_pool(self, layer: layers.ConvNorm, x: Any) -> Any:
        """The pool comes first here, so that the convolution can have the bias."""
        x = self._average(layer, self._pad(layer, x, 1), 3, 1, part="pool")
        return self._conv_norm(layer, x)

    def _batch_norm(self, layer: layers.ConvNorm, x: Any) -> Any:
        options = layer.options
        gamma = [] if options.fixed_gamma else [layer.gamma]
        return self._stock(
            stock.BatchNormalization,
            layer,
            x,
            "bn",
            weights=[*gamma, layer.beta, layer.moving_mean, layer.moving_variance],
            momentum=options.momentum,
            epsilon=options.epsilon,
            scale=not options.fixed_gamma,
        )

    def _padded_convolution(
        self, layer: layers.Conv, x: Any, kernel: Any, bias: Any
    ) -> Any:
        """Returns a convolution with the fixed padding of `layers.convolution`."""
        size, padding = layer.kernel_size, "same"
        if layer.stride > 1 and size > 1:  # "same" would depend on the images' size.
            before = (size - 1) // 2
            sides = (before, size - 1 - before)
            x, padding = self._pad(layer, x, (sides, sides)), "valid"
        return self._convolution(
            layer, x, kernel, bias, strides=layer.stride, padding=padding
        )

    def _conv(self, layer: layers.Conv, x: Any) -> Any:
        x = self._padded_convolution(layer, x, layer.kernel, layer.bias)
        return self._stock(stock.ReLU, layer, x, "relu")

    def _whitening(self, layer: layers.Whitening, x: Any) -> Any:
        return self._convolution(layer, x, layer.kernel, layer.bias, dtype="float32")

    def _zero_pad_shortcut(self, layer: layers.ZeroPadShortcut, x: Any) -> Any:
        """A part of the identity matrix copies the channels and appends zeros."""
        identity = np.eye(x.shape[-1], layer.filters, dtype=np.float32)[None, None]
        return self._convolution(
            layer, x, identity, None, strides=layer.stride, trainable=False
        )

    def _gray(self, layer: mlp.Gray, x: Any) -> Any:
        thirds = np.full((1, 1, 3, 1), 1 / 3, np.float32)
        return self._convolution(layer, x, thirds, None, trainable=False)

    def _max_pool(self, layer: layers.MaxPool, x: Any) -> Any:
        settings: dict[str, Any] = {"strides": layer.stride, "padding": "same"}
        if layer.is_symmetric:
            x = self._pad(layer, x, (layer.window - 1) // 2)
            settings["padding"] = "valid"
        return self._stock(
            stock.MaxPooling2D, layer, x, pool_size=layer.window, **settings
        )

    def _avg_pool(self, layer: layers.AvgPool, x: Any) -> Any:
        return self._average(layer, x, 2, 2, padding="same")

    def _blur_pool(self, layer: layers.BlurPool, x: Any) -> Any:
        """[1, 2, 1] / 4 is the average over two positions, twice."""
        x = self._average(layer, self._pad(layer, x, 1), 2, 1, part="average")
        return self._average(layer, x, 2, layer.stride)

    def _gelu(self, layer: layers.Gelu, x: Any) -> Any:
        dtype = "float32" if x.dtype == "float32" else self._dtype
        return self._stock(stock.Activation, layer, x, dtype=dtype, activation="gelu")

    def _activation(self, layer: layers.Activation | layers.Gate, x: Any) -> Any:
        x = self._stock(stock.Activation, layer, x, activation=layer.activation)
        return x if layer.num_copies == 1 else [x] * layer.num_copies

    def _gate(self, layer: layers.Gate, x: Any, logits: Any, residual: Any) -> Any:
        gate = self._stock(
            stock.Activation, layer, logits, "sigmoid", activation="sigmoid"
        )
        shape = (1, 1, x.shape[-1])
        gate = self._stock(stock.Reshape, layer, gate, "shape", target_shape=shape)
        x = self._stock(stock.Multiply, layer, [x, gate], "product")
        x = self._stock(stock.Add, layer, [x, residual], "sum")
        return self._activation(layer, x)

    def _add(self, layer: layers.Add, *inputs: Any) -> Any:
        return self._stock(stock.Add, layer, list(inputs))

    def _dropout(self, layer: layers.Dropout, x: Any) -> Any:
        if self._contents.is_folded:
            return x
        return self._stock(stock.Dropout, layer, x, rate=layer.rate)

    def _dense(self, layer: layers.Dense, x: Any) -> Any:
        settings = {"dtype": self._dtype, "activation": "relu" if layer.relu else None}
        return self._linear(layer, x, layer.kernel, layer.bias, **settings)

    def _classifier(self, layer: layers.Classifier, x: Any) -> Any:
        x = self._stock(stock.GlobalAveragePooling2D, layer, x, "pool", "float32")
        return self._linear(layer, x, layer.kernel, layer.bias)

    def _scaled_linear(self, layer: layers.ScaledLinear, x: Any) -> Any:
        if self._contents.is_folded:
            return self._linear(layer, x, layer.kernel * layer.scale, None)
        x = self._linear(layer, x, layer.kernel, None)
        return self._stock(
            stock.Rescaling, layer, x, "scale", "float32", scale=layer.scale
        )


def images_of(network: keras.Model) -> tf.TensorSpec:
    """Returns the description of the images that a network of `build` takes."""
    return tf.TensorSpec(network.inputs[0].shape, name="images")


def outputs_of(network: keras.Model, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the outputs of an export of `build`; to be called inside a graph.

    They are "classes", `[batch]` int32, the most probable class of each image, unless
    an image may have several labels; and "probabilities", `[batch, num_classes]`
    float32.
    """
    probabilities = network(images, training=False)
    if is_multi_label(network):
        return {"probabilities": probabilities}
    classes = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
    return {"classes": classes, "probabilities": probabilities}


def is_multi_label(network: keras.Model) -> bool:
    """Returns whether a network of `build` is for several labels an image."""
    return network.get_layer("probabilities").activation is keras.activations.sigmoid


def frozen(network: keras.Model) -> Any:
    """Returns a network of `build` as a `tf.function` whose weights are constants.

    Its argument is named "images", its outputs as `outputs_of` names them.
    """
    weights = [(variable, variable.numpy()) for variable in network.variables]

    def images_to_outputs(images: tf.Tensor) -> dict[str, tf.Tensor]:
        constants = [(variable, tf.constant(value)) for variable, value in weights]
        with keras.StatelessScope(constants):
            return outputs_of(network, images)

    return tf.function(
        images_to_outputs, input_signature=[images_of(network)], autograph=False
    )
