"""Charts in the page: what they show in words, their legend, a table beside them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from resnet.metrics import series
from resnet.report import markup
from resnet.report.charts import vega_lite
from resnet.report.charts.curves import Chart, Curve, last_value
from resnet.report.charts.vega_lite import Json, Mark
from resnet.report.markup import Html, tag
from resnet.report.words import MISSING, number

_MAX_ROWS = 60  # Longest table beside a chart.


@dataclass
class Figures:
    """The charts of a page.

    Attributes:
        specs: Specifications and points by the identifiers of their elements, which the
            page's script draws.
    """

    specs: dict[str, Json] = field(default_factory=dict)

    def add(
        self,
        title: str,
        about: str,
        spec: Json,
        label: str,
        table: Html,
        legend: Html | str = "",
        is_folded: bool = True,
    ) -> Html:
        """Returns the element of a chart, and has the script draw it.

        Args:
            title: The title.
            about: A sentence below the title; may be empty.
            spec: Specification and points, of `vega_lite`.
            label: What the chart shows, for those who can't see it.
            table: The numbers as a table.
            legend: The curves and their looks.
            is_folded: Whether the reader has to open the table.
        """
        name = f"chart-{len(self.specs)}"
        self.specs[name] = spec
        return tag(
            "figure",
            tag("figcaption", tag("h3", title), *([tag("p", about)] if about else [])),
            legend,
            tag("div", class_="chart", id=name, role="img", aria_label=label),
            markup.folded("Values as a table", table) if is_folded else table,
            class_="card",
        )

    def add_chart(self, chart: Chart, marks: Sequence[Mark], last_epoch: float) -> Html:
        """Returns the element of a chart of curves."""
        metric = chart.metric
        about = metric.about
        if chart.window > 1:
            about += (
                " The pale line has the logged values, the other one means of"
                f" {chart.window} of them."
            )
        if metric.has_outliers and (count := _num_outliers(chart)):
            about += f" {count:,} value(s) are beyond the axis."
        if count := sum(_num_not_finite(curve) for curve in _distinct(chart.curves)):
            about += f" {count:,} value(s) are not finite and not drawn."
        title = f"{metric.title}, %" if metric.unit == "%" else metric.title
        return self.add(
            title,
            about.strip(),
            vega_lite.chart(chart, marks, last_epoch),
            f"Line chart of {title} over epochs. {_described(chart.curves)}",
            values_table(title, chart.curves),
            _legend(chart.curves),
        )


def _distinct(curves: Iterable[Curve]) -> list[Curve]:
    """Returns the curves without the raw ones beside smoothed ones."""
    return [curve for curve in curves if curve.style != "raw"]


def _num_outliers(chart: Chart) -> int:
    values = [value for curve in _distinct(chart.curves) for value in curve.rows[2]]
    _, high = series.robust_limits(values)
    return sum(math.isfinite(value) and value > high for value in values)


def _num_not_finite(curve: Curve) -> int:
    return sum(not math.isfinite(value) for value in curve.rows[2])


def _described(curves: Sequence[Curve]) -> str:
    sentences = []
    for curve in _distinct(curves):
        finite = [value for value in curve.rows[2] if math.isfinite(value)]
        if not finite:
            sentences.append(f"{curve.label}: no finite value.")
            continue
        sentences.append(
            f"{curve.label}: from {number(finite[0])} to {number(finite[-1])}, between"
            f" {number(min(finite))} and {number(max(finite))}."
        )
    return " ".join(sentences)


def _legend(curves: Sequence[Curve]) -> Html:
    items = []
    for curve in _distinct(curves):
        dash = "solid" if curve.dash == 0 else "dashed" if curve.dash == 1 else "dotted"
        look = f"border-top: 3px {dash} {vega_lite.color(curve.color)}"
        last = last_value(curve)
        text = f"{curve.label}: {number(last)}" if last is not None else curve.label
        swatch = tag("span", class_="swatch", style=look, aria_hidden="true")
        items.append(tag("li", swatch, " ", text))
    return tag("ul", *items, class_="legend")


def values_table(title: str, curves: Sequence[Curve]) -> Html:
    """Returns the values of curves by step; of many steps some, evenly."""
    distinct = _distinct(curves)
    by_step: dict[int, dict[int, float]] = {}
    epochs: dict[int, float] = {}
    for column, curve in enumerate(distinct):
        for step, epoch, value in zip(*curve.rows, strict=True):
            by_step.setdefault(step, {})[column] = value
            epochs[step] = epoch
    steps = sorted(by_step)
    rows = [
        (
            f"{steps[index]:,}",
            f"{epochs[steps[index]]:.2f}",
            *(
                number(by_step[steps[index]][column])
                if column in by_step[steps[index]]
                else MISSING
                for column in range(len(distinct))
            ),
        )
        for index in _rows_to_show(distinct, steps)
    ]
    caption = title if len(rows) == len(steps) else f"{title}: {len(rows)} of the"
    if len(rows) < len(steps):
        caption += f" {len(steps):,} logged steps, evenly"
    return markup.table(
        caption, ("step", "epoch", *(curve.label for curve in distinct)), rows
    )


def _rows_to_show(curves: Sequence[Curve], steps: Sequence[int]) -> list[int]:
    """Returns the indices of the rows: evenly, and of evaluations if they are few."""
    indices = set(series.evenly(len(steps), _MAX_ROWS))
    place = {step: index for index, step in enumerate(steps)}
    for curve in curves:
        if curve.style == "points" and len(curve.rows[0]) <= _MAX_ROWS:
            indices |= {place[step] for step in curve.rows[0]}
    return sorted(indices)
