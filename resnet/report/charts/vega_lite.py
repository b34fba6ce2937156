"""Charts as Vega-Lite specifications, whose colors are the style sheet's variables.

So a chart follows dark mode and print without being drawn again. The points are apart
from the specification, column by column, which takes a quarter of the space of rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet.metrics import series
from resnet.report.charts.curves import Chart

NUM_COLORS = 8  # --color-0 to --color-7 of the style sheet.
DASHES = ([1, 0], [6, 3], [2, 2], [9, 3, 2, 3])
_HEIGHT = 220

Json = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """A moment on the time axis, drawn as a vertical line through each chart.

    Attributes:
        epoch: Its place on the axis.
        text: What has happened.
        is_fault: Whether it is a failure.
    """

    epoch: float
    text: str
    is_fault: bool = False


def color(number: int) -> str:
    """Returns the color of a run or a series, as CSS."""
    return f"var(--color-{number % NUM_COLORS})"


def chart(chart: Chart, marks: Sequence[Mark], last_epoch: float) -> Json:
    """Returns specification and points of a chart of curves.

    Args:
        chart: The chart.
        marks: The moments to mark.
        last_epoch: The end of the time axis.
    """
    metric = chart.metric
    scale: Json = {"zero": metric.starts_at_zero, "nice": True}
    values = [value for curve in chart.curves for value in curve.values]
    different = {value for value in values if math.isfinite(value)}
    if len(different) == 1 and not metric.starts_at_zero:
        # On an axis of one value, Vega rounds the label, as of 99.88 to 100.
        (value,) = different
        margin = 0.01 * abs(value) or 1.0
        scale["domain"] = [value - margin, value + margin]
    if metric.has_outliers:
        # A raw curve has the values of the smoothed one beside it.
        drawn = [curve for curve in chart.curves if curve.style != "raw"]
        values = [value for curve in drawn for value in curve.rows[2]]
        low, high = series.robust_limits(values)
        scale = {"domain": [low, high], "nice": False, "zero": False}
    x = {
        "field": "epoch",
        "type": "quantitative",
        "title": "epoch",
        "scale": {"domain": [0, max(1.01 * last_epoch, 1e-9)], "nice": False},
    }
    y = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": scale,
        "axis": {"format": "~s"} if metric.unit == "bytes" else {},
    }
    layers = [
        _line("raw", {"strokeWidth": 1, "opacity": 0.35}),
        _line("smooth", {"strokeWidth": 2}),
        _line("line", {"strokeWidth": 2}),
        _line("points", {"strokeWidth": 1.5, "point": {"size": 30, "filled": True}}),
    ]
    styles = {curve.style for curve in chart.curves}
    kept = [one for one in layers if one["transform"][0]["filter"]["equal"] in styles]
    return {
        "spec": _whole(
            [_marks(), *kept, _hover(metric.unit)], {"x": x, "y": y}, _HEIGHT
        ),
        "columns": [
            {
                "label": curve.label,
                "color": color(curve.color),
                "dash": curve.dash % len(DASHES),
                "style": curve.style,
                "epoch": [_short(value) for value in curve.epochs],
                "step": list(curve.steps),
                "value": [_short(value) for value in curve.values],
            }
            for curve in chart.curves
        ],
        "marks": _mark_rows(marks),
    }


def bars(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Returns the reliability diagram: bars of accuracy, and the diagonal.

    Args:
        rows: The bins, with `low`, `high`, `confidence`, `accuracy` and `count`.
    """
    limits = {"domain": [0, 100], "nice": False}
    x_axis = {"title": "confidence, %", "type": "quantitative", "scale": limits}
    y_axis = {"title": "accuracy, %", "type": "quantitative", "scale": limits}
    tooltip = [
        {"field": name, "type": "quantitative", "format": ".4~g", "title": title}
        for name, title in (
            ("confidence", "mean confidence, %"),
            ("accuracy", "accuracy, %"),
            ("count", "images"),
        )
    ]
    bar = {
        "mark": {"type": "bar", "color": color(0), "stroke": "var(--page)"},
        "encoding": {
            "x": {**x_axis, "field": "low"},
            "x2": {"field": "high"},
            "y": {**y_axis, "field": "accuracy"},
            "y2": {"datum": 0},
            "tooltip": tooltip,
        },
    }
    diagonal = {
        "data": {"values": [{"p": 0}, {"p": 100}]},
        "mark": {"type": "line", "color": "var(--muted)", "strokeDash": [5, 4]},
        "encoding": {"x": {**x_axis, "field": "p"}, "y": {**y_axis, "field": "p"}},
    }
    return {
        "spec": {**_common(_HEIGHT), "layer": [bar, diagonal]},
        "rows": list(rows),
    }


def scatter(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Returns the chart of a study: accuracy over bytes.

    Args:
        rows: The rows of the study, with `name`, `bytes`, `top1` and `color`.
    """
    tooltip = [
        {"field": "name", "type": "nominal", "title": "method"},
        {"field": "top1", "type": "quantitative", "format": ".2f", "title": "top-1, %"},
        {"field": "bytes", "type": "quantitative", "format": ",", "title": "bytes"},
    ]
    encoding = {
        "x": {
            "field": "bytes",
            "type": "quantitative",
            "title": "coded gradients of a rank, bytes per step",
            "scale": {"type": "log"},
            "axis": {"format": "~s"},
        },
        "y": {
            "field": "top1",
            "type": "quantitative",
            "title": "top-1, %",
            "scale": {"zero": False},
        },
        "color": {"field": "color", "type": "nominal", "scale": None},
        "shape": {"field": "way", "type": "nominal", "legend": None},
        "tooltip": tooltip,
    }
    mark = {"type": "point", "filled": True, "size": 90}
    return {
        "spec": {**_common(_HEIGHT), "mark": mark, "encoding": encoding},
        "rows": list(rows),
    }


def lanes(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Returns the timeline: a lane for each kind of event, with bars for phases.

    Args:
        rows: The events, with `lane`, `epoch`, `end`, `is_phase`, `text` and `color`.
    """
    names = list(dict.fromkeys(row["lane"] for row in rows))
    has_two_lines = any(": " in name for name in names)
    y = {
        "field": "lane",
        "type": "nominal",
        "sort": names,
        "title": None,
        "axis": {
            "labelLimit": 130,
            # The name of the run stands above the kind of event.
            "labelExpr": "split(datum.label, ': ')",
            "labelOffset": -6 if has_two_lines else 0,
        },
    }
    x = {
        "field": "epoch",
        "type": "quantitative",
        "title": "epoch",
        "scale": {"nice": False},
    }
    shared = {
        "color": {"field": "color", "type": "nominal", "scale": None},
        "tooltip": [
            {"field": "text", "type": "nominal", "title": "event"},
            {"field": "epoch", "type": "quantitative", "format": ".2f"},
        ],
    }
    bar = {
        "transform": [{"filter": "datum.is_phase"}],
        "mark": {"type": "bar", "height": 12, "stroke": "var(--page)"},
        "encoding": {**shared, "x2": {"field": "end"}},
    }
    point = {
        "transform": [{"filter": "!datum.is_phase"}],
        "mark": {"type": "tick", "thickness": 3, "size": 18},
        "encoding": shared,
    }
    height = 40 + 28 * len(names)
    # A layer without rows has no extent, of which Vega warns.
    layers = [
        layer
        for layer, is_phase in ((bar, True), (point, False))
        if any(bool(row["is_phase"]) == is_phase for row in rows)
    ]
    return {
        "spec": _whole(layers, {"x": x, "y": y}, height),
        "rows": [
            {
                key: _short(value) if isinstance(value, float) else value
                for key, value in row.items()
            }
            for row in rows
        ],
    }


def _line(style: str, look: Json) -> Json:
    return {
        "transform": [{"filter": {"field": "style", "equal": style}}],
        "mark": {"type": "line", "clip": True, **look},
        "encoding": {
            "color": {"field": "color", "type": "nominal", "scale": None},
            "detail": {"field": "label", "type": "nominal"},
            "strokeDash": {
                "field": "dash",
                "type": "ordinal",
                "scale": {"domain": list(range(len(DASHES))), "range": list(DASHES)},
                "legend": None,
            },
        },
    }


def _marks() -> Json:
    return {
        "data": {"name": "marks"},
        "mark": {"type": "rule", "strokeWidth": 1, "strokeDash": [3, 3]},
        "encoding": {
            "y": None,
            "color": {"field": "color", "type": "nominal", "scale": None},
            "tooltip": {"field": "text", "type": "nominal"},
        },
    }


def _hover(unit: str) -> Json:
    """Returns the layer of invisible points, the nearest of which shows its values."""
    nearest = {
        "name": "nearest",
        "select": {
            "type": "point",
            "on": "pointermove",
            "clear": "pointerout",
            "nearest": True,
        },
    }
    tooltip = [
        {"field": "label", "type": "nominal", "title": "curve"},
        {
            "field": "value",
            "type": "quantitative",
            "format": ".5~g" if unit != "bytes" else ",",
            "title": unit or "value",
        },
        {"field": "epoch", "type": "quantitative", "format": ".2f"},
        {"field": "step", "type": "quantitative", "format": ","},
    ]
    shown = {"condition": {"param": "nearest", "empty": False, "value": 1}, "value": 0}
    return {
        "transform": [{"filter": {"not": {"field": "style", "equal": "smooth"}}}],
        "params": [nearest],
        "mark": {"type": "point", "filled": True, "size": 70, "clip": True},
        "encoding": {
            "color": {"field": "color", "type": "nominal", "scale": None},
            "opacity": shown,
            "tooltip": tooltip,
        },
    }


def _whole(layers: Sequence[Json], encoding: Json, height: int) -> Json:
    return {**_common(height), "encoding": encoding, "layer": list(layers)}


def _common(height: int) -> Json:
    ink, grid = "var(--muted)", "var(--grid)"
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "background": None,
        "data": {"name": "points"},
        "config": {
            "aria": False,  # The page describes the chart, with a table beside it.
            "font": "system-ui, sans-serif",
            "view": {"stroke": None},
            "axis": {
                "labelColor": ink,
                "titleColor": ink,
                "titleFontWeight": "normal",
                "gridColor": grid,
                "domainColor": grid,
                "tickColor": grid,
                "labelOverlap": True,
            },
            "axisX": {"grid": False, "tickCount": 6},
            "axisY": {"tickCount": 5, "domain": False, "ticks": False},
        },
    }


def _mark_rows(marks: Sequence[Mark]) -> list[Json]:
    return [
        {
            "epoch": _short(mark.epoch),
            "text": mark.text,
            "color": "var(--fault)" if mark.is_fault else "var(--mark)",
        }
        for mark in marks
    ]


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
