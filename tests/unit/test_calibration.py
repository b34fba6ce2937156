import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.report.sections import calibration


def test_the_error_of_four_predictions_by_hand():
    confidence = np.array([0.95, 0.85, 0.3, 0.25])
    is_right = np.array([True, False, True, False])
    # Bins of width 0.5: (0.275 mean confidence, 0.5 right) and (0.9, 0.5).
    found = calibration.reliability(confidence, is_right, num_bins=2)
    assert found.counts.tolist() == [2, 2]
    assert found.confidence == pytest.approx([0.275, 0.9])
    assert found.accuracy == pytest.approx([0.5, 0.5])
    assert found.error == pytest.approx(0.5 * 0.225 + 0.5 * 0.4)


def test_a_bin_has_its_upper_end_but_not_its_lower_one():
    confidence = np.array([0.25, 0.5, 0.5000001, 1.0, 0.0])
    is_right = np.ones(5, bool)
    found = calibration.reliability(confidence, is_right, num_bins=4)
    assert found.counts.tolist() == [2, 1, 1, 1]


def slow_error(confidence, is_right, num_bins):
    """Equation 3 of the source, bin by bin."""
    total = 0.0
    for number in range(num_bins):
        low, high = number / num_bins, (number + 1) / num_bins
        inside = [
            (one, right)
            for one, right in zip(confidence, is_right, strict=True)
            if low < one <= high
        ]
        if inside:
            accuracy = sum(right for _, right in inside) / len(inside)
            mean = sum(one for one, _ in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(accuracy - mean)
    return total


@given(
    predictions=st.lists(
        st.tuples(st.integers(1, 9_999), st.booleans()), min_size=1, max_size=80
    )
)
def test_the_error_is_that_of_a_slow_reference(predictions):
    # Not at the ends of bins, where rounding decides.
    confidence = np.array([one / 10_000 + 1e-5 / 3 for one, _ in predictions])
    is_right = np.array([right for _, right in predictions])
    found = calibration.reliability(confidence, is_right)
    expected = slow_error(confidence, is_right, calibration.NUM_BINS)
    assert found.error == pytest.approx(expected, abs=1e-12)
    assert found.counts.sum() == len(predictions)


def test_confidences_that_are_not_finite_are_left_out():
    confidence = np.array([np.nan, 0.8], np.float32)
    found = calibration.reliability(confidence, np.array([False, True]))
    assert found.counts.sum() == 1
    assert found.error == pytest.approx(0.2)


def test_no_predictions_have_no_error():
    assert calibration.reliability(np.zeros(0), np.zeros(0, bool)).error == 0
