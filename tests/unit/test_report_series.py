import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.metrics import series
from resnet.report.charts import vega_lite
from resnet.report.charts.curves import METRICS, Chart, Curve

VALUES = st.lists(
    st.one_of(st.floats(-100, 100), st.just(math.nan)), min_size=1, max_size=60
)


@given(values=VALUES, half=st.integers(0, 5))
def test_a_smoothed_value_is_the_mean_of_its_finite_neighbors(values, half):
    ours = series.smoothed(np.array(values), 2 * half + 1)
    for index, value in enumerate(ours):
        around = values[max(0, index - half) : index + half + 1]
        finite = [one for one in around if math.isfinite(one)]
        expected = sum(finite) / len(finite) if finite else math.nan
        assert value == pytest.approx(expected, abs=1e-9, nan_ok=True)


@given(values=VALUES, limit=st.integers(2, 40))
def test_a_thinned_line_keeps_its_extremes(values, limit):
    kept = series.thinned(np.array(values), limit)
    assert len(kept) <= limit
    assert list(kept) == sorted(set(kept))
    finite = [one for one in values if math.isfinite(one)]
    if finite:
        shown = [values[index] for index in kept if math.isfinite(values[index])]
        assert (min(shown), max(shown)) == (min(finite), max(finite))


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [(0, 2, []), (3, 5, [0, 1, 2]), (11, 3, [0, 5, 10]), (100, 2, [0, 99])],
)
def test_rows_are_chosen_evenly_with_both_ends(count, limit, expected):
    assert series.evenly(count, limit) == expected


def test_the_axis_of_a_chart_leaves_out_what_its_text_counts():
    """A smoothed curve is drawn twice, but its values count once for the limits."""
    steps, losses = list(range(40)), [2 + 0.01 * step for step in range(40)]
    evaluated = [7.0, 6.9, 6.5, 3.0, 2.5]
    lines = steps, [float(step) for step in steps], losses
    of_evaluation = [8, 16, 24, 32, 40], [8.0, 16.0, 24.0, 32.0, 40.0], evaluated
    drawn = [
        Curve("training", 0, 0, style, lines[1], steps, losses, lines)
        for style in ("raw", "smooth")
    ]
    epochs = of_evaluation[1]
    drawn.append(
        Curve(
            "eval", 1, 0, "points", epochs, of_evaluation[0], evaluated, of_evaluation
        )
    )
    (metric,) = (one for one in METRICS if one.title == "Cross-entropy")
    chart = vega_lite.chart(Chart(metric, drawn), [], 40.0)
    _, expected = series.robust_limits([*losses, *evaluated])
    assert str(expected) in str(chart)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([99.88, 99.88], [98.8812, 100.8788]),
        ([0.0], [-1, 1]),
        ([2.0, math.nan], [1.98, 2.02]),
    ],
)
def test_an_axis_of_a_single_value_has_other_ticks_than_it(values, expected):
    """Vega rounds the label of a lone tick, as of 99.88 to 100."""
    steps, epochs = list(range(len(values))), [float(n) for n in range(len(values))]
    lines = steps, epochs, values
    drawn = [Curve("top-1", 0, 0, "points", epochs, steps, values, lines)]
    (metric,) = (one for one in METRICS if one.title == "Top-1 accuracy")
    chart = vega_lite.chart(Chart(metric, drawn), [], 40.0)
    assert domain_of_y(chart) == pytest.approx(expected)


def test_an_axis_of_several_values_is_left_to_vega():
    lines = [0, 1], [0.0, 1.0], [99.0, 99.5]
    drawn = [Curve("top-1", 0, 0, "points", lines[1], lines[0], lines[2], lines)]
    (metric,) = (one for one in METRICS if one.title == "Top-1 accuracy")
    assert domain_of_y(vega_lite.chart(Chart(metric, drawn), [], 1.0)) is None


def domain_of_y(chart):
    """Returns the domain that the specification of a chart gives its vertical axis."""
    return chart["spec"]["encoding"]["y"]["scale"].get("domain")
