"""The cross-entropy of each example."""

import math
from collections.abc import Sequence

import tensorflow as tf

from resnet.config.phases import PhaseSettings


def of_examples(
    logits: tf.Tensor,
    labels: tf.Tensor,
    phase: PhaseSettings,
    mix_weight: tf.Tensor = None,
    class_weights: Sequence[float] = (),
) -> tf.Tensor:
    """Returns the loss of each example by the settings of a phase, `[batch]` float32.

    Labels are those of `Batch`. Several of an example are 1 where it has them and else
    0; smoothed by s with C classes, 1 - s + s/C and s/C, as those of one class.

    Where the phase mixes examples, 2i and 2i + 1 are partners: an example's own label
    has the weight `mix_weight` (`[batch]` float32, of `mixing.mix_pairs`), its
    partner's the rest. Without `mix_weight`, as in an evaluation, no labels are mixed.

    Class weights, `[num_classes]`, multiply the terms of the cross-entropy: with the
    smoothed and mixed label y and the weights w it is -sum_c w_c y_c log p_c. The
    binary cross-entropy, with terms of the classes that are absent, is multiplied by
    the weight of the example's own label, mixed as the labels are.

    Sources: Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899;
    of the weights PyTorch, CrossEntropyLoss with probabilities as targets and with
    label smoothing, without its division by the sum of the weights.
    """
    is_mixed = mix_weight is not None and bool(phase.mixup or phase.cutmix)

    def mixed(rows: tf.Tensor) -> tf.Tensor:
        if not is_mixed:
            return rows
        own = tf.reshape(mix_weight, [-1] + [1] * (len(rows.shape) - 1))
        pairs = tf.reshape(rows, [-1, 2, *rows.shape[1:]])
        of_partners = tf.reshape(tf.reverse(pairs, [1]), [-1, *rows.shape[1:]])
        return own * rows + (1 - own) * of_partners

    targets = mixed(_smoothed(labels, logits.shape[-1], phase.label_smoothing))
    if phase.loss == "binary_cross_entropy":
        loss = binary_cross_entropy(logits, targets, phase.target_threshold)
        if class_weights:
            loss *= mixed(tf.gather(tf.constant(class_weights, tf.float32), labels))
        return loss
    if class_weights:
        # TensorFlow's gradient of its own op is that of targets with a sum of 1.
        terms = tf.constant(class_weights, tf.float32) * targets
        return -tf.reduce_sum(terms * tf.nn.log_softmax(logits), axis=-1)
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def binary_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, target_threshold: float = 0.0
) -> tf.Tensor:
    """Returns the sum over classes of the sigmoid cross-entropy, `[batch]` float32.

    As Composer's; timm and torch's BCEWithLogitsLoss take the mean, which is 1/C of it.
    The sum keeps the scale of a cross-entropy, and with it the learning rates, for any
    number of classes. Targets, `[batch, num_classes]`, above a
    threshold count as 1, and others as 0; one of 0 leaves them as they are.

    Source: Wightman et al. 2021, arXiv:2110.00476, section 2.3, as in timm,
    loss/binary_cross_entropy.py; mosaicml/composer, composer/loss/loss.py.
    """
    if target_threshold:
        targets = tf.cast(targets > target_threshold, tf.float32)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(losses, axis=-1)


def _smoothed(labels: tf.Tensor, num_classes: int, label_smoothing: float) -> tf.Tensor:
    """Returns the smoothed labels, `[batch, num_classes]` float32.

    Source: Szegedy et al. 2015, arXiv:1512.00567, section 7.
    """
    if len(labels.shape) > 1:
        own = tf.cast(labels, tf.float32) * (1 - label_smoothing)
        return own + label_smoothing / num_classes
    return tf.one_hot(
        labels,
        num_classes,
        on_value=1 - label_smoothing + label_smoothing / num_classes,
        off_value=label_smoothing / num_classes,
    )


def classifier_bias_init(phase: PhaseSettings, num_classes: int) -> float:
    """Returns what the last layer's biases begin with, so that it guesses at first.

    Source: mosaicml/composer, models/initializers.py, linear_log_constant_bias.
    """
    return -math.log(num_classes) if phase.loss == "binary_cross_entropy" else 0.0
