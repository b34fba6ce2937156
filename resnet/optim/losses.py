"""The terms of the loss: cross-entropy of each example, and the weight penalty."""

import math
from collections.abc import Sequence

import tensorflow as tf

from resnet.config.phases import PhaseSettings


def of_examples(
    logits: tf.Tensor, labels: tf.Tensor, mix_weight: tf.Tensor, phase: PhaseSettings
) -> tf.Tensor:
    """Returns the loss of each example in the training of a phase, `[batch]` float32.

    Args:
        mix_weight: `[batch]` float32: weight of each example's own label where
            examples are mixed.
        phase: The phase, whose loss, label smoothing and mixing count.
    """
    is_mixed = bool(phase.mixup or phase.cutmix)
    smoothing = phase.label_smoothing
    if phase.loss == "binary_cross_entropy":
        targets = smoothed(labels, logits.shape[-1], smoothing)
        if is_mixed:
            own = mix_weight[:, tf.newaxis]
            targets = own * targets + (1 - own) * _of_partners(targets)
        return binary_cross_entropy(logits, targets, phase.target_threshold)
    if is_mixed:
        return mixed_cross_entropy(logits, labels, mix_weight, smoothing)
    return cross_entropy(logits, labels, smoothing)


def without_mixing(
    logits: tf.Tensor, labels: tf.Tensor, phase: PhaseSettings
) -> tf.Tensor:
    """Returns the loss of each example in an evaluation, `[batch]` float32.

    Args:
        phase: The phase, whose loss and label smoothing count.
    """
    if phase.loss == "binary_cross_entropy":
        targets = smoothed(labels, logits.shape[-1], phase.label_smoothing)
        return binary_cross_entropy(logits, targets, phase.target_threshold)
    return cross_entropy(logits, labels, phase.label_smoothing)


def smoothed(labels: tf.Tensor, num_classes: int, label_smoothing: float) -> tf.Tensor:
    """Returns the smoothed labels, `[batch, num_classes]` float32.

    Args:
        label_smoothing: Fraction of the label that is spread evenly over all classes.

    Source: Szegedy et al. 2015, arXiv:1512.00567, section 7.
    """
    return tf.one_hot(
        labels,
        num_classes,
        on_value=1 - label_smoothing + label_smoothing / num_classes,
        off_value=label_smoothing / num_classes,
    )


def _of_partners(rows: tf.Tensor) -> tf.Tensor:
    """Returns rows 2i and 2i + 1 of a tensor, `[batch, ...]`, in exchanged places."""
    pairs = tf.reshape(rows, [-1, 2, *rows.shape[1:]])
    return tf.reshape(tf.reverse(pairs, [1]), [-1, *rows.shape[1:]])


def binary_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, target_threshold: float = 0.0
) -> tf.Tensor:
    """Returns the sum over classes of the sigmoid cross-entropy, `[batch]` float32.

    Composer sums over classes, too; timm takes the mean, which needs learning rates
    larger by the number of classes.

    Args:
        targets: `[batch, num_classes]` float32, from 0 to 1.
        target_threshold: The target above which it counts as 1, and otherwise as 0; 0
            leaves the targets as they are.

    Source: Wightman et al. 2021, arXiv:2110.00476, section 2.3, as in timm,
    loss/binary_cross_entropy.py; mosaicml/composer, composer/loss/loss.py.
    """
    if target_threshold:
        targets = tf.cast(targets > target_threshold, tf.float32)
    each = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(each, axis=-1)


def classifier_bias_init(phase: PhaseSettings, num_classes: int) -> float:
    """Returns what the biases of the last layer begin with.

    With binary cross-entropy it is -log(num_classes), so that the first probabilities
    are nearly those of a guess, as they are with a softmax of equal logits.

    Source: mosaicml/composer, composer/models/initializers.py,
    linear_log_constant_bias.
    """
    return -math.log(num_classes) if phase.loss == "binary_cross_entropy" else 0.0


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float
) -> tf.Tensor:
    """Returns the softmax cross-entropy of each example, `[batch]` float32.

    Args:
        label_smoothing: Fraction of the label that is spread evenly over all classes.

    Source: Szegedy et al. 2015, arXiv:1512.00567, section 7.
    """
    targets = smoothed(labels, logits.shape[-1], label_smoothing)
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def mixed_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, mix_weight: tf.Tensor, label_smoothing: float
) -> tf.Tensor:
    """Returns the softmax cross-entropy of each mixed example, `[batch]` float32.

    Examples 2i and 2i + 1 are partners. An example's own label has the weight
    `mix_weight`, and its partner's label has the weight 1 - `mix_weight`.

    Args:
        logits: `[batch, num_classes]` float32; the batch is even.
        mix_weight: `[batch]` float32, from 0 to 1, as `mixing.mix_pairs` returns it.
        label_smoothing: Fraction of the label that is spread evenly over all classes.

    Source: Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899.
    """
    own = cross_entropy(logits, labels, label_smoothing)
    other = cross_entropy(logits, _of_partners(labels), label_smoothing)
    return mix_weight * own + (1 - mix_weight) * other


def weight_penalty(variables: Sequence[tf.Variable], weight_decay: float) -> float:
    """Returns `weight_decay` times half the sum of the squares of all weights.

    The optimizer adds its gradient, `weight_decay` times the weight. The published runs
    include it in the loss that they print.

    Args:
        weight_decay: Factor of a variable that is added to its gradient.
    """
    return weight_decay * sum(float(tf.nn.l2_loss(variable)) for variable in variables)
