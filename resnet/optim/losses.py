"""What training lowers."""

from collections.abc import Sequence

import tensorflow as tf


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float
) -> tf.Tensor:
    """Returns the softmax cross-entropy of each example, `[batch]` float32.

    Args:
        logits: `[batch, num_classes]` float32.
        labels: `[batch]` int32, from 0.
        label_smoothing: Share of the label that is spread evenly over all classes.

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
    """Returns the cross-entropy of examples that pairs were mixed to, `[batch]`.

    Examples 2i and 2i + 1 are partners: to the share that isn't its own label's, an
    example has its partner's.

    Args:
        logits: `[batch, num_classes]` float32; an even number.
        labels: `[batch]` int32, from 0.
        mix_weight: `[batch]` float32, from 0 to 1, as `data.mixing` returns it.
        label_smoothing: As `cross_entropy` takes it.

    Source: Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899.
    """
    pairs = tf.reshape(labels, [-1, 2])
    of_partner = tf.reshape(tf.reverse(pairs, [1]), [-1])
    own = cross_entropy(logits, labels, label_smoothing)
    other = cross_entropy(logits, of_partner, label_smoothing)
    return mix_weight * own + (1 - mix_weight) * other


def weight_penalty(variables: Sequence[tf.Variable], weight_decay: float) -> float:
    """Returns `weight_decay` times half the sum of the squares of all weights.

    Training adds its gradient, `weight_decay` times the weight, and the published runs
    count it in the loss that they print.
    """
    return weight_decay * sum(float(tf.nn.l2_loss(one)) for one in variables)
