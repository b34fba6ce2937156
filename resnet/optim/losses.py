"""The terms of the loss: cross-entropy of each example, and the weight penalty."""

from collections.abc import Sequence

import tensorflow as tf


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float
) -> tf.Tensor:
    """Returns the softmax cross-entropy of each example, `[batch]` float32.

    Args:
        logits: `[batch, num_classes]` float32.
        labels: `[batch]` int32, from 0.
        label_smoothing: Fraction of the label that is spread evenly over all classes.

    Source: Szegedy et al. 2015, arXiv:1512.00567, section 7.
    """
    num_classes = logits.shape[-1]
    targets = tf.one_hot(
        labels,
        num_classes,
        on_value=1 - label_smoothing + label_smoothing / num_classes,
        off_value=label_smoothing / num_classes,
    )
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def mixed_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, mix_weight: tf.Tensor, label_smoothing: float
) -> tf.Tensor:
    """Returns the softmax cross-entropy of each mixed example, `[batch]` float32.

    Examples 2i and 2i + 1 are partners. An example's own label has the weight
    `mix_weight`, and its partner's label has the weight 1 - `mix_weight`.

    Args:
        logits: `[batch, num_classes]` float32; the batch is even.
        labels: `[batch]` int32, from 0.
        mix_weight: `[batch]` float32, from 0 to 1, as `mixing.mix_pairs` returns it.
        label_smoothing: Fraction of the label that is spread evenly over all classes.

    Source: Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899.
    """
    pairs = tf.reshape(labels, [-1, 2])
    partners = tf.reshape(tf.reverse(pairs, [1]), [-1])
    own = cross_entropy(logits, labels, label_smoothing)
    other = cross_entropy(logits, partners, label_smoothing)
    return mix_weight * own + (1 - mix_weight) * other


def weight_penalty(variables: Sequence[tf.Variable], weight_decay: float) -> float:
    """Returns `weight_decay` times half the sum of the squares of all weights.

    The optimizer adds its gradient, `weight_decay` times the weight. The published runs
    include it in the loss that they print.

    Args:
        variables: The variables that decay.
        weight_decay: Factor of a variable that is added to its gradient.
    """
    return weight_decay * sum(float(tf.nn.l2_loss(variable)) for variable in variables)
