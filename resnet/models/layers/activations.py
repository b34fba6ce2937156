"""ReLU, SiLU and Mish, also of a gated feature map and its residual, and GELU.

Source: Elfwing et al. 2017, arXiv:1702.03118, and Ramachandran et al. 2017,
arXiv:1710.05941, for SiLU (Swish); Misra 2019, arXiv:1908.08681, for Mish; Hendrycks
and Gimpel 2016, arXiv:1606.08415, for GELU, without an approximation.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from resnet import native
from resnet.models.layers.base import Layer


def activate(
    x: tf.Tensor,
    activation: str,
    gate: tf.Tensor | None = None,
    residual: tf.Tensor | None = None,
    num_copies: int = 1,
) -> tuple[tf.Tensor, ...]:
    """Returns activation(gate * x + residual), or activation(x) without a gate.

    relu(x) = max(x, 0), silu(x) = x / (1 + e^-x), mish(x) = x * tanh(ln(1 + e^x)).

    x and the residual, which there is only with a gate, are `[batch, height, width,
    channels]`, float32 or bfloat16; the gate is `[batch, channels]`, float32. With one
    of `num_copies` references to the result, 1 or 2, for each consumer, the backward op
    sums their gradients while it reads them.
    """
    library = native.ops()
    if library is None:
        if gate is not None:
            x = x * tf.cast(gate, x.dtype)[:, tf.newaxis, tf.newaxis] + residual
        functions = {"relu": tf.nn.relu, "silu": tf.nn.silu, "mish": _mish}
        return (functions[activation](x),) * num_copies
    return tuple(
        library.resnet_activate(
            x=x,
            gate=[] if gate is None else [gate],
            residual=[] if residual is None else [residual],
            num_copies=num_copies,
            activation=activation,
        )
    )


def _mish(x: tf.Tensor) -> tf.Tensor:
    return x * tf.tanh(tf.nn.softplus(x))


@tf.RegisterGradient("ResnetActivate")
def _activate_gradients(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor]:
    x, *gate_and_residual = op.inputs
    library: Any = native.ops()
    results = library.resnet_activate_grad(
        dy=[dy for dy in gradients if dy is not None],
        x=x,
        gate=gate_and_residual[:1],
        residual=gate_and_residual[1:],
        activation=op.get_attr("activation"),
    )
    return [results.dx, *results.dgate, *results.dresidual]


class _Activated(Layer):
    """What both layers have: an activation, and copies for several consumers."""

    def __init__(self, activation: str, name: str, num_copies: int = 1) -> None:
        super().__init__(name)
        self.activation = activation
        self.num_copies = num_copies

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Sequence[int]
    ) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the shape of `call`'s result, or a list of `num_copies` shapes."""
        shape = tuple(input_shape)
        return shape if self.num_copies == 1 else [shape] * self.num_copies


class Activation(_Activated):
    """ReLU, SiLU or Mish; networks with ReLU have it in `layers.ConvNorm` instead."""

    def call(self, images: tf.Tensor) -> tf.Tensor | list[tf.Tensor]:
        """Returns the activations, shape unchanged, or a list of `num_copies`."""
        outputs = activate(images, self.activation, num_copies=self.num_copies)
        return outputs[0] if self.num_copies == 1 else list(outputs)


class Gate(_Activated):
    """The last layer of squeeze-and-excitation: gate, shortcut and activation.

    y = activation(sigmoid(logits) * images + residual)

    Two dense layers compute the logits from the channels' means over all positions, so
    that channels are weighted by what an image shows.

    Source: Hu et al. 2017, arXiv:1709.01507; sizes and initial weights as in
    tensorflow/tpu, models/official/resnet/resnet_layers.py, squeeze_excitation.
    """

    def call(
        self, images: tf.Tensor, logits: tf.Tensor, residual: tf.Tensor
    ) -> tf.Tensor | list[tf.Tensor]:
        """Returns the outputs, of the images' shape, or a list of `num_copies`.

        The images are the result of a residual block's last normalization, the residual
        is the shortcut, of the same shape; the logits are `[batch, channels]`.
        """
        gate = tf.sigmoid(tf.cast(logits, tf.float32))
        outputs = activate(images, self.activation, gate, residual, self.num_copies)
        return outputs[0] if self.num_copies == 1 else list(outputs)


class Gelu(Layer):
    """GELU, whose results may have another dtype than its inputs."""

    def __init__(self, to: str, name: str) -> None:
        super().__init__(name)
        self.to = to

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns GELU of each value, in the dtype `to`."""
        return gelu(images, self.to)

    def compute_output_spec(self, images: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the shape and dtype of `call`'s result."""
        return keras.KerasTensor(images.shape, self.to)


def gelu(x: tf.Tensor, to: str) -> tf.Tensor:
    """Returns GELU of each value, computed in float32, in the dtype `to`."""
    library = native.ops()
    if library is None:
        return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32)), to)
    return library.resnet_gelu(x=x, U=to)


@tf.RegisterGradient("ResnetGelu")
def _gelu_gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    library: Any = native.ops()
    return library.resnet_gelu_grad(dy=dy, x=op.inputs[0])
