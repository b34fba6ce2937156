"""Test-time augmentation: the mean prediction over several views of each image.

Source: Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural
Networks", section 4.1: the mean of the softmax probabilities of ten crops.
"""

import math

import keras
import tensorflow as tf

from resnet.evaluation.view_names import CROPS_AND_FLIPS


def num_crops(views: str) -> int:
    """Returns the number of crops per image that the input makes."""
    return CROPS_AND_FLIPS[views][0]


def num_views(views: str) -> int:
    """Returns the number of views per image that the network processes."""
    crops, has_flips = CROPS_AND_FLIPS[views]
    return 2 * crops if has_flips else crops


def predict(model: keras.Model, images: tf.Tensor, views: str) -> tf.Tensor:
    """Returns logits whose softmax is the prediction of the network for each image.

    For one view they are the network's own logits. For several views they are the
    logarithms of the mean probabilities.

    Args:
        model: The network.
        images: `[batch, size, size, 3]` float32, or `[batch, crops, size, size, 3]`.
        views: A name of `view_names.VIEWS`.

    Returns:
        `[batch, num_classes]` float32.
    """
    if views == "center":
        return model(images, training=False)
    crops, has_flips = CROPS_AND_FLIPS[views]
    all_views = images if crops > 1 else images[:, tf.newaxis]
    if has_flips:
        flipped = tf.reverse(all_views, [3])  # Along the width.
        all_views = tf.concat([all_views, flipped], axis=1)
    shape = all_views.shape
    logits = model(tf.reshape(all_views, [-1, *shape[2:]]), training=False)
    logits = tf.reshape(logits, [-1, shape[1], logits.shape[-1]])
    return log_mean_probabilities(logits)


def log_mean_probabilities(logits: tf.Tensor) -> tf.Tensor:
    """Returns the logarithms of the mean probabilities of several views.

    They are computed in the logarithmic domain, so that no probability underflows.

    Args:
        logits: `[batch, views, num_classes]` float32.

    Returns:
        `[batch, num_classes]` float32.
    """
    log_sums = tf.reduce_logsumexp(tf.nn.log_softmax(logits), axis=1)
    return log_sums - math.log(logits.shape[1])
