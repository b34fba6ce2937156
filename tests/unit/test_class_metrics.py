import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics

from resnet.metrics import class_metrics
from resnet.metrics.class_metrics import ByClass, ByLabel


def counts_of(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> ByClass:
    matrix = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(matrix, (labels, predicted), 1)
    return ByClass.of_matrix(matrix)


def test_three_classes_by_hand():
    """Class 0 has 1 of 3 right, class 1 one of 2, class 2 all; class 3 is empty."""
    labels, predicted = np.array([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 0, 2]])
    counts = counts_of(labels, predicted, 4)
    nan = np.nan
    assert counts.recall == pytest.approx([1 / 3, 1 / 2, 1, nan], nan_ok=True)
    assert counts.precision == pytest.approx([1 / 2, 1 / 3, 1, nan], nan_ok=True)
    assert counts.f1 == pytest.approx([2 / 5, 2 / 5, 1, nan], nan_ok=True)
    assert counts.balanced_accuracy == pytest.approx(11 / 18)
    assert counts.macro_f1 == pytest.approx(3 / 5)
    assert counts.is_imbalanced


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label was found")
@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_the_numbers_of_classes_are_those_of_scikit_learn(pairs):
    labels, predicted = np.array(pairs).T
    counts = counts_of(labels, predicted, 6)
    present = np.unique(labels)
    precision, recall, f1, images = metrics.precision_recall_fscore_support(
        labels, predicted, labels=present, zero_division=np.nan
    )
    np.testing.assert_allclose(counts.recall[present], recall)
    np.testing.assert_allclose(counts.precision[present], precision)
    np.testing.assert_array_equal(counts.actual[present], images)
    has_right = counts.right[present] > 0  # Else scikit-learn's F1 may be NaN.
    np.testing.assert_allclose(counts.f1[present][has_right], f1[has_right])
    balanced = metrics.balanced_accuracy_score(labels, predicted)
    assert counts.balanced_accuracy == pytest.approx(balanced)
    macro = metrics.f1_score(labels, predicted, labels=present, average="macro")
    assert counts.macro_f1 == pytest.approx(macro)


@given(
    rows=st.lists(
        st.tuples(st.booleans(), st.integers(0, 16).map(lambda k: k / 16)), min_size=2
    )
)
def test_two_classes_are_decided_as_by_scikit_learn(rows):
    labels = np.array([int(label) for label, _ in rows])
    probability = np.array([value for _, value in rows])  # Of class 1.
    both = np.stack([1 - probability, probability], axis=1)
    order = np.argsort(-both, axis=1, kind="stable")
    two = class_metrics.two_classes(labels, order, np.take_along_axis(both, order, 1))
    if len(set(labels)) == 1:
        assert two is None
        return
    assert two.positive == int(2 * labels.sum() <= len(labels))  # The rarer one.
    is_positive, scores = labels == two.positive, both[:, two.positive]
    assert two.roc_auc == pytest.approx(metrics.roc_auc_score(is_positive, scores))
    for row in two.thresholds:
        called = scores >= row.threshold
        negatives = ~is_positive
        assert row.recall == metrics.recall_score(is_positive, called)
        precision = metrics.precision_score(is_positive, called, zero_division=np.nan)
        assert row.precision == pytest.approx(precision, nan_ok=True)
        assert row.false_positive_rate == np.mean(called[negatives])


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 20), share=st.floats(0, 1))
def test_several_labels_are_measured_as_by_scikit_learn(seed, count, share):
    """With equal scores, and with labels that no image or every image has."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((count, 3)) < share).astype(np.uint8)
    scores = generator.integers(0, 9, (count, 3)) / 8
    by_label = ByLabel.of_scores(scores, labels)
    assert by_label.positive.tolist() == labels.sum(axis=0).tolist()
    present, lacking = labels.any(axis=0), (labels == 0).any(axis=0)
    precision, area = metrics.average_precision_score, metrics.roc_auc_score
    for values, mean, expected, chosen in (
        (by_label[1], by_label.mean_average_precision, precision, present),
        (by_label[2], by_label.mean_roc_auc, area, present & lacking),
    ):
        assert np.isnan(values).tolist() == (~chosen).tolist()
        theirs = 0.0
        if chosen.any():
            theirs = expected(labels[:, chosen], scores[:, chosen], average="macro")
        assert mean == pytest.approx(theirs)


def test_probabilities_that_round_to_one_are_still_in_order():
    """Scores of both are 1 in float32; the other class' 1e-9 and 1e-12 tell them."""
    labels = np.array([0, 1])
    probabilities = np.array([[1, 1e-9], [1, 1e-12]], np.float32)
    two = class_metrics.two_classes(labels, np.array([[1, 0]] * 2), probabilities)
    assert two.roc_auc == 1


@given(scores=st.lists(st.integers(0, 5), min_size=2, max_size=30), data=st.data())
def test_the_area_is_the_probability_of_the_right_order(scores, data):
    count = len(scores)
    positive = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    assume(0 < sum(positive) < count)
    values, is_positive = np.array(scores), np.array(positive)
    differences = values[is_positive][:, None] - values[~is_positive]
    expected = np.mean((np.sign(differences) + 1) / 2)
    assert class_metrics.roc_auc(values, is_positive) == pytest.approx(expected)
