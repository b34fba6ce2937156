"""The figure of a study of compression: accuracy over bytes, and over time."""

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resnet.base.text import size
from resnet.metrics import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StudyRow:
    """A row of a study of compression: what its trainings have in common."""

    method: str  # What the legend calls the method; empty for no compression.
    way: str  # "none", "layerwise" or "entiremodel".
    has_feedback: bool  # Whether error feedback is on.
    top1_percents: Sequence[float]  # Of each that has not diverged.
    message_bytes: Sequence[float]  # Of coded gradients per step, of each of these.
    minutes: Sequence[float]


# Told apart with any color vision. Source: Okabe and Ito 2008, "Color universal
# design"; its yellow is too light for small markers, wine takes its place.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255")
_LABEL_WIDTH = 26  # Characters of a line of the legend.
_FORM: Any = {"markeredgewidth": 1.6, "markersize": 7, "linestyle": "none"}
# The second ones are used where colors repeat.
_MARKERS = (
    {"layerwise": "o", "entiremodel": "s"},
    {"layerwise": "^", "entiremodel": "v"},
)
_DENSE: Any = ("#000000", {"none": "D"})


def draw(rows: Sequence[StudyRow], title: str) -> "Figure":
    """Returns the figure of a study: accuracy over bytes, and over time.

    Each row is a point: the median of its seeds, with a bar from the worst to the best.
    """
    drawn, (over_bytes, over_time) = figure.panels((12, 5.2), 1, 2, sharey=True)
    methods = list(dict.fromkeys(row.method for row in rows if row.method))
    for axes, name, label in (
        (over_bytes, "message_bytes", "coded gradients of a rank, bytes per step"),
        (over_time, "minutes", "training time, minutes"),
    ):
        axes.set_xscale("log")
        for row in rows:
            _draw_row(axes, row, getattr(row, name), methods)
        _label_few_decades(axes)
        axes.set_xlabel(label)
    over_bytes.set_title("Top-1, %", loc="left")
    over_bytes.xaxis.set_major_formatter(
        lambda value, _: size(value, "g", ("B", "kB", "MB", "GB"))
    )
    _draw_legend(over_time, methods)
    return figure.finish(drawn, title, drawn.axes)


def _draw_row(
    axes: "Axes", row: StudyRow, values: Sequence[float], methods: Sequence[str]
) -> None:
    if not row.top1_percents:
        return
    middle = statistics.median(row.top1_percents)
    color, markers = _style(row.method, methods)
    axes.errorbar(
        statistics.median(values),
        middle,
        [[middle - min(row.top1_percents)], [max(row.top1_percents) - middle]],
        marker=markers[row.way],
        color=color,
        markerfacecolor=color if row.has_feedback else "white",
        elinewidth=1,
        capsize=2,
        **_FORM,
    )
    if not row.method:
        axes.axhline(middle, color=figure.GREY, linewidth=1, linestyle=":")


def _style(method: str, methods: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    if not method:
        return _DENSE
    repetition, number = divmod(methods.index(method), len(_COLORS))
    return _COLORS[number], _MARKERS[repetition % 2]


def _label_few_decades(axes: "Axes") -> None:
    """Labels more than the powers of ten where the axis has few of them."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = axes.get_xlim()
    if high / low < 5:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_minor_locator(NullLocator())
    elif high / low < 30:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:g}")


def _draw_legend(axes: "Axes", methods: Sequence[str]) -> None:
    """Draws the legend beside the axes: color is the method, form the way."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D

    def examples(color: str, face: str, *markers: str) -> tuple[Line2D, ...]:
        look: Any = {"color": color, "markerfacecolor": face, **_FORM}
        return tuple(Line2D([], [], marker=marker, **look) for marker in markers)

    entries = {"dense": examples("#000000", "white", "D")}
    for method in methods:
        color, markers = _style(method, methods)
        label = textwrap.fill(method, _LABEL_WIDTH)
        entries[label] = examples(color, color, markers["layerwise"])
    in_use = _MARKERS[: 1 + (len(methods) > len(_COLORS))]
    ways = {"layer by layer": "layerwise", "entire model": "entiremodel"}
    for label, way in ways.items():
        entries[label] = examples(figure.GREY, "white", *(of[way] for of in in_use))
    entries["filled: error feedback"] = examples(figure.GREY, figure.GREY, "o")
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
    handlers = {tuple: HandlerTuple(ndivide=None)}
    labels = list(entries)
    axes.legend(
        entries.values(), labels, handler_map=handlers, **figure.LEGEND, **place
    )
