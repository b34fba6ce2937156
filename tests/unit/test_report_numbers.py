"""The numbers of the report: curves, confusions and calibration."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.metrics import jsonl
from resnet.metrics.figure import robust_limits
from resnet.metrics.table import METRICS
from resnet.report import charts, curves, folder, story, words
from resnet.report import predictions as of_predictions
from resnet.report.curves import Chart, Curve
from tests.unit.report_runs import append_line, make_run

VALUES = st.lists(
    st.one_of(st.floats(-100, 100), st.just(math.nan)), min_size=1, max_size=60
)


@given(values=VALUES, half=st.integers(0, 5))
def test_a_smoothed_value_is_the_mean_of_its_finite_neighbors(values, half):
    ours = curves.smoothed(np.array(values), 2 * half + 1)
    for index, value in enumerate(ours):
        around = values[max(0, index - half) : index + half + 1]
        finite = [neighbor for neighbor in around if math.isfinite(neighbor)]
        expected = sum(finite) / len(finite) if finite else math.nan
        assert value == pytest.approx(expected, abs=1e-9, nan_ok=True)


@given(values=VALUES, limit=st.integers(2, 40))
def test_a_thinned_line_keeps_its_extremes(values, limit):
    kept = curves.thinned(np.array(values), limit)
    assert len(kept) <= limit
    assert kept == sorted(set(kept))
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        shown = [values[index] for index in kept if math.isfinite(values[index])]
        assert (min(shown), max(shown)) == (min(finite), max(finite))


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [(0, 2, []), (3, 5, [0, 1, 2]), (11, 3, [0, 5, 10]), (100, 2, [0, 99])],
)
def test_rows_are_chosen_evenly_with_both_ends(count, limit, expected):
    assert curves.evenly(count, limit) == expected


def drawn(title: str, values, window: int = 1) -> charts.Figure:
    """Returns the figure of a metric with these values of training."""
    (metric,) = (metric for metric in METRICS if metric.title == title)
    steps = list(range(len(values)))
    epochs = list(map(float, steps))
    curve = Curve("training", 0, 0, True, steps, epochs, np.array(values), window)
    return charts.of_curves(Chart(metric, [curve]), [], 40.0)


def test_the_axis_of_a_chart_leaves_out_what_its_text_counts():
    """A smoothed curve is drawn twice, but its values count once for the limits."""
    losses = [2 + 0.01 * step for step in range(40)] + [7.0, 50.0, math.nan]
    figure = drawn("Cross-entropy", losses, window=3)
    assert figure.points["scale"]["domain"] == list(robust_limits(losses))
    assert (
        "Values beyond the axis: 2. Values that are not finite, and not drawn: 1."
        in figure.about
    )
    assert robust_limits([math.nan]) == (0.0, 1.0)
    assert robust_limits([2.0, 2.0]) == (1.5, 2.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([99.88, 99.88], [98.8812, 100.8788]),
        ([0.0], [-1, 1]),
        ([2.0, math.nan], [1.98, 2.02]),
        ([99.0, 99.5], None),  # Of several values, it is left to Vega.
    ],
)
def test_an_axis_of_a_single_value_has_other_ticks_than_it(values, expected):
    """Vega rounds the label of a lone tick, as of 99.88 to 100."""
    scale = drawn("Weight penalty", values).points["scale"]
    assert scale.get("domain") == (expected and pytest.approx(expected))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([66.6], [61.6, 71.6]),
        ([75.0, 77.0], [71.0, 81.0]),
        ([99.0, 99.5], [90.0, 100.0]),
        ([0.0, 1.0], [0.0, 10.0]),
        ([20.0, math.nan, 50.0], [20.0, 50.0]),
    ],
)
def test_the_axis_of_an_accuracy_has_ten_points_or_more(values, expected):
    scale = drawn("Top-1 accuracy", values).points["scale"]
    assert scale["domain"] == pytest.approx(expected)


LABELS = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 1, 1, 1, 0, 2])


@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_a_cell_counts_the_images_of_its_class_and_prediction(pairs):
    labels = np.array([label for label, _ in pairs], np.int32)
    predicted = np.array([other for _, other in pairs], np.int32)
    expected = np.zeros((5, 5), int)
    for label, other in pairs:
        expected[label, other] += 1
    counts = of_predictions.confusion_matrix(labels, predicted, 5)
    assert counts.tolist() == expected.tolist()


def test_the_most_frequent_confusion_is_first():
    counts = of_predictions.confusion_matrix(LABELS, PREDICTED, 4)
    first, second = of_predictions.most_confused(counts, 5)
    assert first == (0, 1, 2, pytest.approx(2 / 3))
    assert second == (1, 0, 1, pytest.approx(1 / 2))
    assert of_predictions.most_confused(counts, 1) == [first]


def test_a_bin_has_its_upper_end_but_not_its_lower_one():
    confidence = np.array([0.25, 0.5, 0.5000001, 1.0, 0.0])
    bins = of_predictions.reliability(confidence, np.ones(5, bool), num_bins=4)
    assert bins.counts.tolist() == [2, 1, 1, 1]


def slow_error(confidence, is_right, num_bins):
    """Equation 3 of the source, bin by bin."""
    total = 0.0
    for number in range(num_bins):
        low, high = number / num_bins, (number + 1) / num_bins
        inside = (low < confidence) & (confidence <= high)
        if inside.any():
            distance = abs(is_right[inside].mean() - confidence[inside].mean())
            total += inside.mean() * distance
    return total


@given(
    predictions=st.lists(
        st.tuples(st.integers(1, 9_999), st.booleans()), min_size=1, max_size=80
    )
)
def test_the_error_is_that_of_a_slow_reference(predictions):
    # Not at the ends of bins, where rounding decides.
    confidence = np.array([number / 10_000 + 1e-5 / 3 for number, _ in predictions])
    is_right = np.array([right for _, right in predictions])
    bins = of_predictions.reliability(confidence, is_right)
    expected = slow_error(confidence, is_right, of_predictions.NUM_BINS)
    assert bins.error == pytest.approx(expected, abs=1e-12)
    assert bins.counts.sum() == len(predictions)


def test_confidences_that_are_not_finite_are_left_out():
    confidence = np.array([np.nan, 0.8], np.float32)
    bins = of_predictions.reliability(confidence, np.array([False, True]))
    assert bins.counts.sum() == 1
    assert bins.error == pytest.approx(0.2)
    assert of_predictions.reliability(np.zeros(0), np.zeros(0, bool)).error == 0


def test_the_result_is_that_of_the_weights_that_programs_use(tmp_path):
    make_run(tmp_path)
    numbers = {"top1": 0.875, "cross_entropy": 0.75, "count": 360}
    line = jsonl.make_line("eval_ema", 400, 9.0, numbers)
    append_line(tmp_path, jsonl.encode(line))
    (run,) = folder.read_all([tmp_path])
    assert story.title([run]).endswith(f"ResNet-18, top-1 {words.percent(0.875)}")
    _, how_well, _ = story.summary(run)
    assert "on 360 validation images (EMA weights)" in how_well
    assert "The best is" not in how_well
