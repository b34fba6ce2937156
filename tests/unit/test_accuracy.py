"""The confidence interval of an accuracy, against the test that defines it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.metrics import accuracy


@given(data=st.data(), count=st.integers(1, 100_000))
def test_the_ends_are_the_accuracies_at_the_edge_of_a_score_test(data, count):
    right = data.draw(st.integers(0, count))
    share = right / count
    low, high = accuracy.interval(share, count)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
    for end, is_at_bound in ((low, right == 0), (high, right == count)):
        if is_at_bound:
            assert end == pytest.approx(share, abs=1e-12)
        else:  # The quantile of the normal distribution at 97.5 %, from a table.
            variance = end * (1 - end) / count
            assert (share - end) ** 2 == pytest.approx(1.959964**2 * variance, rel=1e-5)
    mirrored = accuracy.interval(1 - share, count)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_the_interval_covers_the_accuracy_of_all_images_as_often_as_it_says():
    """By the binomial distribution itself; Wilson's is near 95 % also for few."""
    count, truth = 19, 0.8
    covered, weight = 0.0, (1 - truth) ** count  # Of 0 right, then of 1, and so on.
    for right in range(count + 1):
        low, high = accuracy.interval(right / count, count)
        covered += weight * (low <= truth <= high)
        weight *= (count - right) / (right + 1) * truth / (1 - truth)
    assert 0.93 < covered < 0.98


def test_it_is_told_in_percent():
    assert accuracy.interval_text(16 / 19, 19) == "62.4 to 94.5 %"
    assert accuracy.interval_text(1.0, 19) == "83.2 to 100.0 %"
