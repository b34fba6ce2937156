"""The layers of squeeze-and-excitation: channels are weighted by what an image shows.

Two dense layers compute a gate from 0 to 1 for each channel from the channels' means
over all positions. The gates multiply the result of a residual block's last
normalization, before the shortcut is added.

Source: Hu et al. 2017, arXiv:1709.01507; sizes and initial weights as in
tensorflow/tpu, models/official/resnet/resnet_layers.py, squeeze_excitation.
"""

from collections.abc import Sequence

import tensorflow as tf

from resnet.models.layers import activations
from resnet.models.layers.base import Layer


class Gate(Layer):
    """The gated result of a block, with the shortcut added, and the activation.

    y = activation(sigmoid(logits) * images + residual)
    """

    def __init__(self, activation: str, name: str, num_copies: int = 1) -> None:
        """Stores the settings of the layer.

        Args:
            activation: One of `names.ACTIVATIONS`.
            name: Name of the layer.
            num_copies: Number of references to the output that `call` returns.
        """
        super().__init__(name)
        self.activation = activation
        self.num_copies = num_copies

    def call(
        self, images: tf.Tensor, logits: tf.Tensor, residual: tf.Tensor
    ) -> tf.Tensor | list[tf.Tensor]:
        """Returns the outputs, of the images' shape, or a list of `num_copies`.

        Args:
            images: `[batch, height, width, channels]`, float32 or bfloat16.
            logits: `[batch, channels]`, in the same dtype.
            residual: Tensor to add, of the shape and dtype of the images.
        """
        outputs = activations.activate(
            images,
            self.activation,
            tf.sigmoid(tf.cast(logits, tf.float32)),
            residual,
            self.num_copies,
        )
        return outputs[0] if self.num_copies == 1 else list(outputs)

    def compute_output_shape(
        self, input_shape: Sequence[int], *_: Sequence[int]
    ) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the shape of `call`'s result, or a list of `num_copies` shapes."""
        return activations.shapes_of_copies(tuple(input_shape), self.num_copies)
