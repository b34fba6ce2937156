import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.report.sections import confusion

LABELS = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 1, 1, 1, 0, 2])


@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_a_cell_counts_the_images_of_its_class_and_prediction(pairs):
    labels = np.array([label for label, _ in pairs], np.int32)
    predicted = np.array([other for _, other in pairs], np.int32)
    expected = np.zeros((5, 5), int)
    for label, other in pairs:
        expected[label, other] += 1
    assert confusion.matrix(labels, predicted, 5).tolist() == expected.tolist()


def test_the_accuracy_of_a_class_is_a_fraction_of_its_images():
    counts = confusion.matrix(LABELS, PREDICTED, 4)
    accuracies = confusion.accuracies(counts)
    assert accuracies == pytest.approx([1 / 3, 1 / 2, 1, np.nan], nan_ok=True)


def test_the_most_frequent_confusion_is_first():
    counts = confusion.matrix(LABELS, PREDICTED, 3)
    first, second = confusion.most_confused(counts, 5)
    assert (first.label, first.predicted, first.count) == (0, 1, 2)
    assert first.share == pytest.approx(2 / 3)
    assert (second.label, second.predicted, second.count) == (1, 0, 1)
    assert confusion.most_confused(counts, 1) == [first]
