"""Charts in the page: their points for page.js, what they show in words, a table."""

import contextlib
import importlib.metadata
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data_prep.records import manifest
from resnet.base import atomic_files
from resnet.metrics.figure import robust_limits
from resnet.report.curves import Chart, Curve, evenly, smoothed, thinned
from resnet.report.words import number

_NUM_COLORS = 8  # --color-0 to --color-7 of the style sheet.
_NUM_DASHES = 4  # Of page.js and page.html.
_MAX_POINTS = 400  # About the pixels of a chart on half a screen.
_MAX_MARKERS = 40  # More markers of evaluations would touch.
_MAX_ROWS = 60  # Longest table beside a chart.

Json = dict[str, Any]


class Table(NamedTuple):
    """A table, whose first column heads the rows; the page formats its cells."""

    caption: str
    header: Sequence[object]
    rows: Sequence[Sequence[object]]
    class_: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart in the page."""

    title: str
    about: str  # A sentence below the title; may be empty.
    points: Json  # And what else page.js needs; `kind` is one of its functions.
    label: str  # What the chart shows, for those who can't see it.
    table: Table | None = None  # The numbers, unless they are beside it anyway.
    curves: Sequence[Curve] = ()  # The curves of its legend.


class Mark(NamedTuple):
    """A moment on the time axis, drawn as a vertical line through each chart."""

    epoch: float
    text: str
    color: str


def color(number: int) -> str:
    """Returns the color of a run or a series, as CSS."""
    return f"var(--color-{number % _NUM_COLORS})"


def script_text() -> str | None:
    """Returns the script that defines `vegaEmbed`, cached; None without its package."""
    try:
        version = importlib.metadata.version("vl-convert-python")
        path = manifest.cache() / "charts" / f"vega-{version}.js"
        with contextlib.suppress(OSError):
            return path.read_text(encoding="utf-8")
        text = _bundle()
    except ImportError:  # Not installed, or built for another platform.
        return None
    with contextlib.suppress(OSError):  # The cache can't be written to.
        os.makedirs(path.parent, exist_ok=True)
        atomic_files.atomic_write_bytes(path, text.encode())
    return text


def _bundle() -> str:
    import vl_convert

    # The package's types lack the argument's default.
    text: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    # It would end the element of the page that holds the script.
    return text.replace("</script", "<\\/script")


def of_curves(chart: Chart, marks: Sequence[Mark], last_epoch: float) -> Figure:
    """Returns the figure of a chart of curves, over epochs up to the last."""
    metric, curves = chart.metric, chart.curves
    about = metric.about
    if (window := max(curve.window for curve in curves)) > 1:
        about += f" Over the pale line of all values are means of {window} of them."
    all_finite = np.concatenate([curve.finite for curve in curves])
    num_beyond = np.count_nonzero(all_finite > robust_limits(all_finite)[1])
    if metric.has_outliers and num_beyond:
        about += f" Values beyond the axis: {num_beyond:,}."
    if count := sum(len(curve.values) for curve in curves) - len(all_finite):
        about += f" Values that are not finite, and not drawn: {count:,}."
    title = f"{metric.title}, %" if metric.unit == "%" else metric.title
    described = " ".join(map(_describe, curves))
    return Figure(
        title,
        about.strip(),
        _points(chart, marks, last_epoch),
        f"Line chart of {title} over epochs. {described}",
        values_table(title, curves),
        curves,
    )


def _describe(curve: Curve) -> str:
    if not len(curve.finite):
        return f"{curve.label}: no finite value."
    values = curve.finite.tolist()
    ends = f"from {number(values[0])} to {number(values[-1])}"
    return f"{curve.label}: {ends}, {number(min(values))} to {number(max(values))}."


def values_table(title: str, curves: Sequence[Curve]) -> Table:
    """Returns the values of curves by step; of many steps some, evenly."""
    columns = [
        dict(zip(curve.steps, curve.values.tolist(), strict=True)) for curve in curves
    ]
    epochs: dict[int, float] = {}
    for curve in curves:
        epochs.update(zip(curve.steps, curve.epochs, strict=True))
    steps = sorted(epochs)
    shown = {steps[index] for index in evenly(len(steps), _MAX_ROWS)}
    for curve in curves:  # All evaluations, if they are few.
        if not curve.is_training and len(curve.steps) <= _MAX_MARKERS:
            shown.update(curve.steps)
    rows = [
        (step, f"{epochs[step]:.2f}", *(column.get(step) for column in columns))
        for step in sorted(shown)
    ]
    if len(rows) < len(steps):
        title += f": {len(rows)} of the {len(steps):,} steps, evenly"
    return Table(title, ("step", "epoch", *(curve.label for curve in curves)), rows)


def _points(chart: Chart, marks: Sequence[Mark], last_epoch: float) -> Json:
    return {
        "kind": "curves",
        "unit": chart.metric.unit,
        "epochs": [0, max(1.01 * last_epoch, 1e-9)],
        "scale": _value_scale(chart),
        "columns": [column for curve in chart.curves for column in _columns(curve)],
        "marks": [
            {"epoch": short(mark.epoch), "text": mark.text, "color": mark.color}
            for mark in marks
        ],
    }


def _value_scale(chart: Chart) -> Json:
    metric = chart.metric
    values = np.concatenate([curve.finite for curve in chart.curves])
    if metric.has_outliers:
        return {"domain": list(robust_limits(values)), "nice": False, "zero": False}
    scale: Json = {"zero": metric.starts_at_zero, "nice": True}
    if not metric.starts_at_zero and len(values):
        low, high = float(values.min()), float(values.max())
        margin = 0.01 * abs(low) or 1.0
        if metric.unit == "%":  # A point more or less shouldn't fill the axis.
            span = max(high - low, 10.0)
            start = min(max((low + high - span) / 2, 0.0), 100 - span)
            scale["domain"] = [start, start + span]
        elif low == high:  # Vega would round the label, as of 99.88 to 100.
            scale["domain"] = [low - margin, low + margin]
    return scale


def _columns(curve: Curve) -> list[Json]:
    """Returns the points of the lines of a curve, column by column."""
    style = "line"
    if not curve.is_training and len(curve.values) <= _MAX_MARKERS:
        style = "points"
    lines = {style: curve.values}
    if curve.window > 1:
        smooth = smoothed(curve.values, curve.window)
        lines = {"raw": curve.values, "smooth": smooth}
    return [
        {
            "label": curve.label,
            "color": color(curve.color),
            "dash": curve.dash % _NUM_DASHES,
            "style": style,
            "epoch": [short(curve.epochs[index]) for index in kept],
            "step": [curve.steps[index] for index in kept],
            "value": [short(float(values[index])) for index in kept],
        }
        for style, values in lines.items()
        for kept in [thinned(values, _MAX_POINTS)]
    ]


def short(value: float) -> float | None:
    """Returns a number with six digits; None if it isn't finite, as JSON has none."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
