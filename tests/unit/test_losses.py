import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.config.phases import PhaseSettings
from resnet.optim import losses


def slow_cross_entropy(logits, labels, label_smoothing) -> np.ndarray:
    """-sum of target * log(softmax), the target smoothed over all classes."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    num_classes = logits.shape[1]
    targets = np.full(logits.shape, label_smoothing / num_classes)
    targets[np.arange(len(labels)), labels] += 1 - label_smoothing
    return -(targets * log_softmax).sum(1)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 6),
    num_classes=st.integers(1, 12),
    spread=st.sampled_from([0.1, 1.0, 50.0]),
)
def test_cross_entropy_is_that_of_the_formula(
    label_smoothing, seed, batch, num_classes, spread
):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, spread, (batch, num_classes)).astype(np.float32)
    labels = generator.integers(0, num_classes, batch).astype(np.int32)
    ours = losses.cross_entropy(
        tf.constant(logits), tf.constant(labels), label_smoothing
    )
    assert ours.dtype == tf.float32
    expected = slow_cross_entropy(logits, labels, label_smoothing)
    # float32's 6e-8 of the largest term.
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6 * max(spread, 1))


def test_knowing_nothing_costs_the_logarithm_of_the_number_of_classes():
    ours = losses.cross_entropy(tf.zeros([2, 1000]), tf.constant([0, 999]), 0.0)
    np.testing.assert_allclose(ours, np.log(1000), rtol=1e-6)


def test_smoothing_spreads_over_all_classes_the_right_one_included():
    # Two classes, logits 0 and ln 3: probabilities 1/4 and 3/4; targets 0.1 and 0.9.
    logits = tf.constant([[0.0, np.log(3.0)]], tf.float32)
    ours = losses.cross_entropy(logits, tf.constant([1]), 0.2)
    expected = -0.1 * np.log(0.25) - 0.9 * np.log(0.75)
    np.testing.assert_allclose(ours, [expected], rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    num_pairs=st.integers(1, 4),
    num_classes=st.integers(1, 12),
)
def test_the_cross_entropy_of_mixed_pairs_is_that_of_their_mixed_labels(
    label_smoothing, seed, num_pairs, num_classes
):
    generator = np.random.default_rng(seed)
    batch = 2 * num_pairs
    logits = generator.normal(0, 3, (batch, num_classes)).astype(np.float32)
    labels = generator.integers(0, num_classes, batch).astype(np.int32)
    share = generator.uniform(0, 1, batch).astype(np.float32)
    ours = losses.mixed_cross_entropy(
        tf.constant(logits), tf.constant(labels), tf.constant(share), label_smoothing
    )
    assert ours.dtype == tf.float32
    of_partner = labels.reshape(-1, 2)[:, ::-1].reshape(-1)
    expected = share * slow_cross_entropy(logits, labels, label_smoothing)
    expected += (1 - share) * slow_cross_entropy(logits, of_partner, label_smoothing)
    # float32's 6e-8 of the largest term.
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=3e-6)


def test_a_mixed_example_has_its_partners_label_for_the_rest():
    # Two classes, logits 0 and ln 3: probabilities 1/4 and 3/4.
    logits = tf.constant([[0.0, np.log(3.0)]] * 4, tf.float32)
    ours = losses.mixed_cross_entropy(
        logits, tf.constant([1, 0, 1, 1]), tf.constant([0.9, 0.9, 0.3, 0.3]), 0.0
    )
    unlikely, likely = -np.log(0.25), -np.log(0.75)
    expected = [
        0.9 * likely + 0.1 * unlikely,
        0.9 * unlikely + 0.1 * likely,
        likely,
        likely,
    ]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_examples_that_are_wholly_their_own_cost_what_they_cost_unmixed(
    label_smoothing,
):
    logits = tf.constant(np.random.default_rng(0).normal(size=(6, 5)), tf.float32)
    labels = tf.constant([0, 1, 2, 3, 4, 0])
    np.testing.assert_array_equal(
        losses.mixed_cross_entropy(logits, labels, tf.ones([6]), label_smoothing),
        losses.cross_entropy(logits, labels, label_smoothing),
    )


def test_the_penalty_is_half_the_sum_of_the_squares():
    variables = [tf.Variable([1.0, -2.0]), tf.Variable([[3.0]])]
    # 0.01 * (1 + 4 + 9) / 2.
    assert losses.weight_penalty(variables, 0.01) == pytest.approx(0.07, rel=1e-12)
    assert losses.weight_penalty([], 0.01) == 0
    assert losses.weight_penalty(variables, 0.0) == 0


def slow_binary(logits, targets) -> np.ndarray:
    """The sum over classes of -t log(p) - (1 - t) log(1 - p), p the sigmoid."""
    logits = logits.astype(np.float64)
    log_p, log_q = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)
    return -(targets * log_p + (1 - targets) * log_q).sum(1)


def binary_case() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels, weights of their own labels, and the labels' rows."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (6, 5)).astype(np.float32)
    labels = np.array([0, 1, 2, 3, 4, 4], np.int32)
    mix_weight = np.array([0.9, 0.9, 0.7, 0.7, 1.0, 1.0], np.float32)
    return logits, labels, mix_weight, np.eye(5)[labels]


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.2}, {"cutmix": 1.0}])
def test_binary_cross_entropy_is_that_of_the_formula(label_smoothing, mixing):
    logits, labels, mix_weight, rows = binary_case()
    phase = PhaseSettings(
        loss="binary_cross_entropy", label_smoothing=label_smoothing, **mixing
    )
    ours = losses.of_examples(
        tf.constant(logits), labels, tf.constant(mix_weight), phase
    )
    assert ours.dtype == tf.float32
    smoothed = (1 - label_smoothing) * rows + label_smoothing / 5
    targets = smoothed
    if mixing:
        own = mix_weight[:, np.newaxis]
        targets = own * smoothed + (1 - own) * smoothed[[1, 0, 3, 2, 5, 4]]
    np.testing.assert_allclose(ours, slow_binary(logits, targets), rtol=1e-5)
    unmixed = losses.without_mixing(tf.constant(logits), labels, phase)
    np.testing.assert_allclose(unmixed, slow_binary(logits, smoothed), rtol=1e-5)


def test_labels_above_the_threshold_count_as_one():
    logits, labels, mix_weight, rows = binary_case()
    phase = PhaseSettings(
        *(),
        loss="binary_cross_entropy",
        label_smoothing=0.1,
        mixup=0.2,
        target_threshold=0.2,
    )
    ours = losses.of_examples(
        tf.constant(logits), labels, tf.constant(mix_weight), phase
    )
    # Of the first pair the partner's label has 0.1 * 0.92 + 0.9 * 0.02 = 0.11, of the
    # second 0.3 * 0.92 + 0.7 * 0.02 = 0.29.
    targets = rows.copy()
    targets[2:4] = rows[2] + rows[3]
    np.testing.assert_allclose(ours, slow_binary(logits, targets), rtol=1e-5)


def test_the_loss_of_a_phase_is_the_cross_entropy_otherwise():
    logits, labels, mix_weight, _ = binary_case()
    given = tf.constant(logits), labels
    for mixing, expected in (
        ({}, losses.cross_entropy(*given, 0.1)),
        ({"cutmix": 1.0}, losses.mixed_cross_entropy(*given, mix_weight, 0.1)),
    ):
        phase = PhaseSettings(label_smoothing=0.1, **mixing)
        ours = losses.of_examples(*given, tf.constant(mix_weight), phase)
        np.testing.assert_array_equal(ours, expected)
        unmixed = losses.without_mixing(*given, phase)
        np.testing.assert_array_equal(unmixed, losses.cross_entropy(*given, 0.1))


def test_biases_begin_near_the_probabilities_of_a_guess():
    binary = PhaseSettings(loss="binary_cross_entropy")
    assert losses.classifier_bias_init(binary, 1000) == pytest.approx(
        -6.907755, rel=1e-6
    )
    assert losses.classifier_bias_init(PhaseSettings(), 1000) == 0.0
