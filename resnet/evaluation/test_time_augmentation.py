"""Test-time augmentation: the mean prediction over several views of each image.

Source: Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural
Networks", section 4.1: the mean of the softmax probabilities of ten crops.
"""

import math

import keras
import tensorflow as tf

from resnet.config.recipe import VIEWS, Views


def num_views(views: str) -> int:
    """Returns the most views of an image that the network processes at a time.

    The two shifts are processed at a time, after the image itself.
    """
    kinds = VIEWS[views]
    num_shifts = 2 if kinds.shift_below else 1
    return kinds.num_crops * num_shifts * (2 if kinds.has_flips else 1)


def predict(model: keras.Model, images: tf.Tensor, views: str) -> tf.Tensor:
    """Returns logits whose softmax is the network's prediction for each image.

    For one view they are the network's own logits. For several views they are the
    logarithms of the mean probabilities. Of these, an image that is shifted by a pixel
    has half the weight of the image itself.

    The images are `[batch, size, size, 3]` float32, or `[batch, crops, size, size, 3]`,
    the views a name of `VIEWS`.

    Source of the shifts: Jordan 2024, arXiv:2404.00498, and KellerJordan/
    cifar10-airbench, legacy/airbench94.py (infer), where the mean is that of logits. Of
    shifts for uncertain images only: hiverge/cifar10-speedrun, 2025, which shifts the
    least certain fifth of all; with a bound, predictions don't depend on other images.
    """
    if views == "center":
        return model(images, training=False)
    kinds = VIEWS[views]
    all_views = images if kinds.num_crops > 1 else images[:, tf.newaxis]
    first = _mean_of(model, all_views, kinds)
    if not kinds.shift_below:
        return first
    best, second = tf.unstack(tf.math.top_k(tf.exp(first), 2).values, axis=1)
    uncertain = tf.where(best - second < kinds.shift_below)

    def with_shifts() -> tf.Tensor:
        shifted = _shifted(tf.gather_nd(all_views, uncertain))
        means = [tf.gather_nd(first, uncertain), _mean_of(model, shifted, kinds)]
        both = log_mean_probabilities(tf.stack(means, axis=1))
        return tf.tensor_scatter_nd_update(first, uncertain, both)

    return tf.cond(tf.size(uncertain) > 0, with_shifts, lambda: first)


def _mean_of(model: keras.Model, images: tf.Tensor, kinds: Views) -> tf.Tensor:
    """Returns the logarithms of the mean probabilities of crops and of their flips.

    The images are `[batch, crops, height, width, 3]`.
    """
    if kinds.has_flips:
        images = tf.concat([images, tf.reverse(images, [3])], axis=1)  # The width.
    shape = images.shape
    logits = model(tf.reshape(images, [-1, *shape[2:]]), training=False)
    return log_mean_probabilities(tf.reshape(logits, [-1, shape[1], logits.shape[-1]]))


def _shifted(images: tf.Tensor) -> tf.Tensor:
    """Returns images shifted by a pixel to the bottom right and to the top left.

    The sides that become free reflect what is next to them. The crops, `[batch, crops,
    height, width, 3]`, become twice as many.
    """
    height, width = images.shape[2:4]
    padded = tf.pad(images, [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    shifted = [padded[:, :, at : at + height, at : at + width] for at in (0, 2)]
    return tf.concat(shifted, axis=1)


def log_mean_probabilities(logits: tf.Tensor) -> tf.Tensor:
    """Returns the logarithms of views' mean probabilities, `[batch, num_classes]`.

    They are computed in the logarithmic domain, so that no probability underflows. The
    logits are `[batch, views, num_classes]` float32.
    """
    logarithms = tf.nn.log_softmax(logits)
    return tf.reduce_logsumexp(logarithms, axis=1) - math.log(logits.shape[1])
