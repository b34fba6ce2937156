"""A first layer that whitens the patches of images, computed from training images.

Its outputs are the principal components of the patches, scaled to variance 1, and the
negatives of these components, so that an activation function keeps both signs. The
kernel isn't trained.

Source: Jordan 2024, arXiv:2404.00498, and KellerJordan/cifar10-airbench,
legacy/airbench94.py (init_whitening_conv); from tysam-code/hlb-CIFAR10.
"""

from collections.abc import Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from resnet.models.layers.base import Layer

EPSILON = 5e-4  # The source's; it limits the factor of components that hardly vary.


class Whitening(Layer):
    """An unpadded convolution with a constant kernel and a trainable bias.

    It computes in float32: the differences of neighboring pixels, which it scales by up
    to 45, would be mostly rounding errors in bfloat16.
    """

    def __init__(self, kernel_size: int, name: str) -> None:
        super().__init__(name)
        self.kernel_size = kernel_size

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates the kernel, `[size, size, channels, filters]`, and the bias.

        It has two filters for each value of a patch: until `whiten`, for white noise.
        """
        size, channels = self.kernel_size, input_shape[-1]
        self.filters = 2 * size * size * channels
        shape = (size, size, channels, self.filters)
        self.kernel = self.add_float("kernel", shape, "zeros", trainable=False)
        self.kernel.assign(kernel_of(np.eye(size * size * channels), size))
        self.bias = self.add_float("bias", (self.filters,), "zeros")

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, height - size + 1, width - size + 1, filters]`, float32."""
        images = tf.nn.conv2d(images, self.kernel.value, 1, "VALID")
        return tf.nn.bias_add(images, self.bias.value)

    def compute_output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of `call`'s result."""
        height, width = (side - self.kernel_size + 1 for side in input_shape[1:3])
        return input_shape[0], height, width, self.filters


def layers_of(model: keras.Model) -> list[Whitening]:
    """Returns the layers of a network whose kernels come from training images."""
    return [layer for layer in model.layers if isinstance(layer, Whitening)]


def whiten(layer: Whitening, batches: Iterable[np.ndarray]) -> None:
    """Sets the kernel of a layer by the patches of images; ValueError without any."""
    moments = second_moments(batches, layer.kernel_size)
    layer.kernel.assign(kernel_of(moments, layer.kernel_size))


def second_moments(batches: Iterable[np.ndarray], size: int) -> np.ndarray:
    """Returns the mean products of each two values of a patch, as float64 `[n, n]`.

    They aren't centered, as in the source. The n = size * size * channels values of a
    patch are in the order (row, column, channel).
    """
    sums: np.ndarray | float = 0.0
    count = 0
    for images in batches:
        views = np.lib.stride_tricks.sliding_window_view(images, (size, size), (1, 2))
        # [batch, row, column, channel, row of patch, column of patch]
        num_values = size * size * images.shape[3]
        patches = views.transpose(0, 1, 2, 4, 5, 3).reshape(-1, num_values)
        patches = patches.astype(np.float64)
        sums = sums + patches.T @ patches
        count += len(patches)
    if not count:
        raise ValueError("expected images to whiten by, got none")
    return np.asarray(sums / count)


def kernel_of(moments: np.ndarray, size: int) -> np.ndarray:
    """Returns the kernel by `second_moments`, `[size, size, channels, filters]`.

    Each filter is an eigenvector divided by sqrt(eigenvalue + epsilon), that of the
    largest eigenvalue first, and then the negatives in the same order. The largest
    value of each eigenvector is positive, so that all computers choose the same sign.
    """
    eigenvalues, eigenvectors = np.linalg.eigh(moments)
    eigenvalues, eigenvectors = eigenvalues[::-1], eigenvectors[:, ::-1]
    largest = np.abs(eigenvectors).argmax(axis=0)[np.newaxis]
    eigenvectors = eigenvectors * np.sign(
        np.take_along_axis(eigenvectors, largest, axis=0)
    )
    scaled = eigenvectors / np.sqrt(eigenvalues + EPSILON)
    filters = np.concatenate([scaled, -scaled], axis=1)
    return filters.reshape(size, size, -1, filters.shape[1]).astype(np.float32)
