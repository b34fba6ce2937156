import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.config.phases import PhaseSettings
from resnet.optim import losses

KINDS = ("cross_entropy", "binary_cross_entropy")


def slow_loss(kind: str, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The formulas in float64, by the logarithms of softmax or of the sigmoid."""
    logits = logits.astype(np.float64)
    if kind == "cross_entropy":
        return (targets * (np.logaddexp.reduce(logits, 1)[:, None] - logits)).sum(1)
    log_p, log_q = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)
    return -(targets * log_p + (1 - targets) * log_q).sum(1)


@pytest.mark.parametrize(
    ("kind", "several"), [*((kind, False) for kind in KINDS), (KINDS[1], True)]
)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_pairs=st.integers(1, 4),
    num_classes=st.integers(1, 12),
    spread=st.sampled_from([0.1, 1.0, 50.0]),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
    mixing=st.sampled_from([{}, {"mixup": 0.2}, {"cutmix": 1.0}]),
)
def test_the_loss_is_that_of_the_formula_for_mixed_and_smoothed_labels(
    kind, several, seed, num_pairs, num_classes, spread, smoothing, mixing
):
    """Several labels an image, too; the gradients are of probability minus target."""
    generator = np.random.default_rng(seed)
    batch = 2 * num_pairs
    logits = generator.normal(0, spread, (batch, num_classes)).astype(np.float32)
    labels = generator.integers(0, num_classes, batch).astype(np.int32)
    own = generator.uniform(0, 1, batch).astype(np.float32)
    phase = PhaseSettings(loss=kind, label_smoothing=smoothing, **mixing)
    targets = np.eye(num_classes)[labels]
    if several:
        labels = targets = generator.integers(0, 2, targets.shape).astype(np.uint8)
    inputs = tf.constant(logits), tf.constant(labels), phase
    targets = (1 - smoothing) * targets + smoothing / num_classes
    partners = targets.reshape(-1, 2, num_classes)[:, ::-1].reshape(targets.shape)
    mixed = own[:, None] * targets + (1 - own[:, None]) * partners
    # float32's 6e-8 of the largest term.
    close = {"rtol": 1e-5, "atol": 3e-6 * max(spread, 1)}
    for ours, expected in (
        (losses.of_examples(*inputs), targets),
        (losses.of_examples(*inputs, tf.constant(own)), mixed if mixing else targets),
    ):
        assert ours.dtype == tf.float32
        np.testing.assert_allclose(ours, slow_loss(kind, logits, expected), **close)
    with tf.GradientTape() as tape:
        tape.watch(inputs[0])
        loss = losses.of_examples(*inputs)
    activation = tf.nn.softmax if kind == "cross_entropy" else tf.sigmoid
    gradient = activation(logits.astype(np.float64)) - targets
    np.testing.assert_allclose(tape.gradient(loss, inputs[0]), gradient, atol=1e-5)


def slow_weighted_loss(
    kind: str,
    logits: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    of_example: np.ndarray,
) -> np.ndarray:
    """PyTorch's: each term has its class' weight; of the sigmoid, each example."""
    if kind == "cross_entropy":
        return slow_loss(kind, logits, targets * weights)
    return of_example * slow_loss(kind, logits, targets)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    num_classes=st.integers(2, 9),
    smoothing=st.sampled_from([0.0, 0.1]),
    mixing=st.sampled_from([{}, {"mixup": 0.2}, {"cutmix": 1.0}]),
)
def test_weights_of_classes_are_smoothed_and_mixed_with_the_labels(
    kind, seed, num_classes, smoothing, mixing
):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (6, num_classes)).astype(np.float32)
    labels = generator.integers(0, num_classes, 6).astype(np.int32)
    weights = generator.uniform(0, 5, num_classes)
    own = generator.uniform(0, 1, 6) if mixing else np.ones(6)
    phase = PhaseSettings(loss=kind, label_smoothing=smoothing, **mixing)
    targets = (1 - smoothing) * np.eye(num_classes)[labels] + smoothing / num_classes
    other = np.arange(6) ^ 1
    mixed = own[:, None] * targets + (1 - own[:, None]) * targets[other]
    of_label = weights[labels]
    of_example = own * of_label + (1 - own) * of_label[other]
    expected = (mixed, weights, of_example)

    def gradient(row: int, column: int) -> float:
        """Of the sum of the losses, by central differences in float64."""
        ends = []
        for step in (1e-4, -1e-4):
            moved = logits.astype(np.float64)
            moved[row, column] += step
            ends.append(slow_weighted_loss(kind, moved, *expected).sum())
        return (ends[0] - ends[1]) / 2e-4

    variable = tf.Variable(logits)
    mix_weight = tf.constant(own, tf.float32)
    with tf.GradientTape() as tape:
        ours = losses.of_examples(variable, labels, phase, mix_weight, tuple(weights))
    slow = slow_weighted_loss(kind, logits, *expected)
    np.testing.assert_allclose(ours, slow, rtol=1e-5, atol=1e-5)
    gradients = tape.gradient(ours, variable).numpy()
    for row, column in ((0, 0), (3, num_classes - 1)):
        assert gradients[row, column] == pytest.approx(gradient(row, column), abs=1e-4)
    alike = losses.of_examples(
        variable, labels, phase, mix_weight, (1.0,) * num_classes
    )
    unweighted = losses.of_examples(variable, labels, phase, mix_weight)
    np.testing.assert_allclose(alike, unweighted, rtol=1e-5, atol=1e-5)


def test_labels_above_the_threshold_count_as_one():
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (6, 5)).astype(np.float32)
    labels = np.array([0, 1, 2, 3, 4, 4], np.int32)
    own = tf.constant([0.9, 0.9, 0.7, 0.7, 1.0, 1.0])
    others = {"label_smoothing": 0.1, "mixup": 0.2, "target_threshold": 0.2}
    phase = PhaseSettings(loss="binary_cross_entropy", **others)
    ours = losses.of_examples(tf.constant(logits), labels, phase, own)
    # Of the first pair the partner's label has 0.1 * 0.92 + 0.9 * 0.02 = 0.11, of the
    # second 0.3 * 0.92 + 0.7 * 0.02 = 0.29.
    targets = np.eye(5)[labels]
    targets[2:4] = targets[2] + targets[3]
    expected = slow_loss("binary_cross_entropy", logits, targets)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_biases_begin_near_the_probabilities_of_a_guess():
    binary = PhaseSettings(loss="binary_cross_entropy")
    assert losses.classifier_bias_init(binary, 1000) == pytest.approx(-np.log(1000))
    assert losses.classifier_bias_init(PhaseSettings(), 1000) == 0.0
