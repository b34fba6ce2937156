"""Test-time augmentation: the mean prediction over several views of each image.

Source: Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural
Networks", section 4.1: the mean of the softmax probabilities of ten crops.
"""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from resnet.config.recipe import VIEWS


def num_views(views: str) -> int:
    """Returns the number of views per image that the network processes."""
    return len(_weights(views))


def predict(model: keras.Model, images: tf.Tensor, views: str) -> tf.Tensor:
    """Returns logits whose softmax is the network's prediction for each image.

    For one view they are the network's own logits. For several views they are the
    logarithms of the mean probabilities. Of these, an image that is shifted by a pixel
    has half the weight of the image itself.

    The images are `[batch, size, size, 3]` float32, or `[batch, crops, size, size, 3]`,
    the views a name of `VIEWS`.

    Source of the shifts: Jordan 2024, arXiv:2404.00498, and KellerJordan/
    cifar10-airbench, legacy/airbench94.py (infer), where the mean is that of logits.
    """
    if views == "center":
        return model(images, training=False)
    kinds = VIEWS[views]
    all_views = images if kinds.num_crops > 1 else images[:, tf.newaxis]
    if kinds.has_shifts:
        all_views = tf.concat([all_views, _shifted(all_views)], axis=1)
    if kinds.has_flips:
        flipped = tf.reverse(all_views, [3])  # Along the width.
        all_views = tf.concat([all_views, flipped], axis=1)
    shape = all_views.shape
    logits = model(tf.reshape(all_views, [-1, *shape[2:]]), training=False)
    logits = tf.reshape(logits, [-1, shape[1], logits.shape[-1]])
    return log_mean_probabilities(logits, _weights(views))


def _weights(views: str) -> list[float]:
    kinds = VIEWS[views]
    weights = [1.0] * kinds.num_crops
    if kinds.has_shifts:
        weights += [0.5] * (2 * kinds.num_crops)
    return weights * (2 if kinds.has_flips else 1)


def _shifted(images: tf.Tensor) -> tf.Tensor:
    """Returns images shifted by a pixel to the bottom right and to the top left.

    The sides that become free reflect what is next to them. The crops, `[batch, crops,
    height, width, 3]`, become twice as many.
    """
    height, width = images.shape[2:4]
    padded = tf.pad(images, [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    shifted = [padded[:, :, at : at + height, at : at + width] for at in (0, 2)]
    return tf.concat(shifted, axis=1)


def log_mean_probabilities(logits: tf.Tensor, weights: Sequence[float]) -> tf.Tensor:
    """Returns the logarithms of views' mean probabilities, `[batch, num_classes]`.

    They are computed in the logarithmic domain, so that no probability underflows. The
    logits are `[batch, views, num_classes]` float32.
    """
    logarithms = tf.nn.log_softmax(logits)
    logarithms += tf.math.log(tf.constant(weights, tf.float32))[:, tf.newaxis]
    return tf.reduce_logsumexp(logarithms, axis=1) - math.log(sum(weights))
