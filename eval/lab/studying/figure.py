"""The figure of a study: accuracy over bytes, and over time."""

import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from eval.lab.studying import report, rows
from eval.lab.studying.results import Result
from resnet.config.compression import CompressionSettings

# Told apart with any color vision. Source: Okabe and Ito 2008, "Color universal
# design"; its yellow is too light for small markers, wine takes its place.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255")
_LABEL_WIDTH = 26  # Characters of a line of the legend.
_BLACK = "#000000"
_GREY = "#666666"
_MARKERS = {"none": "D", "layerwise": "o", "entiremodel": "s"}
_MORE_MARKERS = {"none": "D", "layerwise": "^", "entiremodel": "v"}  # Colors repeat.

Results = Mapping[CompressionSettings, Sequence[Result]]


def draw(results: Results, title: str) -> Figure:
    """Returns the figure of a study.

    Each row is a point: the median of its seeds, with a bar from the worst to the best.
    Trainings that diverged are not in it.

    Args:
        results: The results of each row, at least one.
        title: What all trainings have in common.
    """
    figure = Figure(figsize=(12, 5.2))
    over_bytes, over_time = figure.subplots(1, 2, sharey=True)
    methods = list(dict.fromkeys(map(rows.method, results)))
    methods = [name for name in methods if name != rows.method(rows.DENSE)]
    _draw_points(over_bytes, results, methods, lambda one: one.message_bytes)
    _draw_points(over_time, results, methods, lambda one: one.seconds / 60)
    over_bytes.set_xlabel("coded gradients of a rank, bytes per step")
    over_time.set_xlabel("training time, minutes")
    over_bytes.set_title("Top-1 over bytes, %", loc="left")
    over_time.set_title("Top-1 over time, %", loc="left")
    over_bytes.xaxis.set_major_formatter(FuncFormatter(_bytes))
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    _draw_legend(over_time, methods)
    figure.suptitle(title, x=0.01, ha="left")
    figure.tight_layout()
    return figure


def _draw_points(
    axes: Axes,
    results: Results,
    methods: Sequence[str],
    value: Callable[[Result], float],
) -> None:
    axes.set_xscale("log")
    for row, found in results.items():
        kept = [one for one in found if one.top1 is not None]
        if not kept:
            continue
        percents = report.top1_percent(kept)
        middle = statistics.median(percents)
        color, marker = _style(row, methods)
        axes.errorbar(
            statistics.median(map(value, kept)),
            middle,
            [[middle - min(percents)], [max(percents) - middle]],
            marker=marker,
            color=color,
            markerfacecolor=color if row.error_feedback else "white",
            markeredgewidth=1.6,
            markersize=7,
            elinewidth=1,
            capsize=2,
            linestyle="none",
        )
        if row == rows.DENSE:
            axes.axhline(middle, color=_GREY, linewidth=1, linestyle=":")
    _label_few_decades(axes)


def _label_few_decades(axes: Axes) -> None:
    """Labels more than the powers of ten where the axis has few of them."""
    low, high = axes.get_xlim()
    if high / low < 5:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_minor_locator(NullLocator())
    elif high / low < 30:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _style(row: CompressionSettings, methods: Sequence[str]) -> tuple[str, str]:
    """Returns the color of a row's method, and the marker of its way."""
    if row == rows.DENSE:
        return _BLACK, _MARKERS[row.compress]
    repetition, number = divmod(methods.index(rows.method(row)), len(_COLORS))
    markers = _MORE_MARKERS if repetition % 2 else _MARKERS
    return _COLORS[number], markers[row.compress]


def _draw_legend(axes: Axes, methods: Sequence[str]) -> None:
    """Draws the legend beside the axes: color is the method, form the way."""

    def example(color: str, marker: str, face: str) -> Line2D:
        return Line2D(
            [],
            [],
            marker=marker,
            color=color,
            markerfacecolor=face,
            markeredgewidth=1.6,
            markersize=7,
            linestyle="none",
        )

    entries: dict[str, tuple[Line2D, ...]] = {}
    entries["dense"] = (example(_BLACK, _MARKERS["none"], "white"),)
    for number, name in enumerate(methods):
        repetition, color = divmod(number, len(_COLORS))
        markers = _MORE_MARKERS if repetition % 2 else _MARKERS
        label = textwrap.fill(name, _LABEL_WIDTH)
        entries[label] = (
            example(_COLORS[color], markers["layerwise"], _COLORS[color]),
        )
    in_use = (_MARKERS, _MORE_MARKERS)[: 1 + (len(methods) > len(_COLORS))]
    for label, way in (
        ("layer by layer", "layerwise"),
        ("entire model", "entiremodel"),
    ):
        entries[label] = tuple(example(_GREY, one[way], "white") for one in in_use)
    entries["filled: error feedback"] = (example(_GREY, _MARKERS["layerwise"], _GREY),)
    axes.legend(
        entries.values(),
        entries,
        handler_map={tuple: HandlerTuple(ndivide=None)},
        frameon=False,
        fontsize=9,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
    )


def _bytes(value: float, _: int) -> str:
    """Returns a number of bytes with its unit, in powers of 1000."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
