"""All pictures: a recipe's schedule, learning curves, an estimate, a study.

Matplotlib is imported where a picture is drawn, since it takes half a second.
"""

import io
import math
import pathlib
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resnet.base import atomic_files
from resnet.base.errors import UserError
from resnet.base.text import size
from resnet.config.config import Config, Derived, main_metric
from resnet.metrics import accuracy
from resnet.metrics.jsonl import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_DOTS_PER_INCH = 110
_MOST_POINTS = 20_000
_OUTLIER_DISTANCE = 1.5  # As a multiple of the range of the 5th to 95th percentile.
_LEGEND: Any = {"frameon": False, "fontsize": 9}
_BLUE, _GREY, _LIGHT_GREY, _RED = "#2a6fb0", "#666666", "#999999", "#c0392b"


def write(figure: "Figure", path: pathlib.Path, flag: str) -> None:
    """Writes a figure to a file that a flag names, atomically, and makes its folder."""
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{flag} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}; got"
            f" {path}"
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], dpi=_DOTS_PER_INCH)
    atomic_files.write_named(path, drawn.getvalue(), flag)


def _panels(
    size: tuple[float, float], rows: int, columns: int, **options: Any
) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **options)


def _finish(figure: "Figure", title: str, with_grid: "Sequence[Axes]") -> "Figure":
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in with_grid:
        axes.grid(alpha=0.25)
    # Matplotlib would take a text between two dollar signs for a formula.
    figure.suptitle(title.replace("$", r"\$"), x=0.01, ha="left")
    figure.tight_layout()
    return figure


def _draw_curve(
    axes: "Axes", derived: Derived, name: str, steps: range, color: str
) -> None:
    curve, epoch = derived.curves[name], derived.config.epoch
    drawn = steps[:: max(1, len(steps) // _MOST_POINTS)]
    axes.plot(list(map(epoch, drawn)), list(map(curve, drawn)), color=color)


def schedule(derived: Derived) -> "Figure":
    """Returns a figure of learning rate, weight decay and momentum over the epochs."""
    config = derived.config
    names = list(derived.curves)
    figure, all_axes = _panels(
        (9, 6), len(names), 1, sharex=True, height_ratios=(3, 1, 1)
    )
    trained = range(derived.first_step, config.train_steps)
    for axes, name in zip(all_axes, names, strict=True):
        _draw_curve(axes, derived, name, trained, _BLUE)
        axes.set_ylim(bottom=0)
        axes.set_title(name, loc="left", fontsize=10)
        for phase in derived.phases[1:]:
            begin = config.epoch(phase.first_step)
            axes.axvline(begin, color=_LIGHT_GREY, linewidth=0.8, zorder=0)
    look: Any = {"transform": all_axes[0].get_xaxis_transform(), "va": "top"}
    for phase in derived.phases if len(config.phases) > 1 else ():
        begin, name = config.epoch(phase.first_step), f" {phase.settings.name}"
        all_axes[0].text(begin, 1.0, name, fontsize=8, **look)
    last = all_axes[-1]
    last.set_xlabel(f"epoch of {config.num_train_examples:,} images")
    conversions: Any = (lambda epoch: epoch * config.steps_per_epoch, config.epoch)
    steps = last.secondary_xaxis(-0.75, functions=conversions)
    steps.xaxis.set_major_formatter("{x:,.0f}")
    steps.set_xlabel(f"step of {config.global_batch_size:,} images")
    title = f"{config.recipe}: batch {config.global_batch_size:,}, {len(trained):,}"
    return _finish(figure, f"{title} steps", figure.axes)


def robust_limits(values: Iterable[float]) -> tuple[float, float]:
    """Returns the limits of an axis, with a margin of 4 %, of values without outliers.

    These exceed the 95th percentile by more than `_OUTLIER_DISTANCE` times the range
    from the 5th to it.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    if not len(finite):
        return 0.0, 1.0
    p5, p95 = np.percentile(finite, [5, 95])
    low = finite.min()
    high = finite[finite <= p95 + _OUTLIER_DISTANCE * (p95 - p5)].max()
    margin = 0.04 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


@dataclass(frozen=True)
class LoggedRun:
    """The settings and metrics of a run, for its learning curves."""

    name: str
    config: Config
    lines: Sequence[Line]  # The lines of `metrics.jsonl`, at least one of kind "train".

    def column(self, kind: str, name: str) -> list[float]:
        """Returns the values of a metric in all lines of a kind."""
        return [line[name] for line in self.lines if line["kind"] == kind]


# The line style of each kind of evaluation, and the suffix of its label.
_EVALUATIONS = {"eval": ("o--", ""), "eval_ema": ("s:", ", EMA weights")}


def learning_curves(runs: Sequence[LoggedRun]) -> "Figure":
    """Returns a figure of loss, accuracy and learning rate over the epochs."""
    figure, (losses, accuracy, rate) = _panels((12, 3.6), 1, 3)
    _draw_losses(losses, runs)
    _draw_accuracy(accuracy, runs)
    for number, run in enumerate(runs):
        derived = Derived(run.config, 1)
        trained = range(derived.first_step, int(max(run.column("train", "step"))))
        _draw_curve(rate, derived, "learning rate", trained, f"C{number}")
    rate.set_title("Learning rate", loc="left")
    rate.set_ylim(bottom=0)
    last_epoch = max(max(run.column("train", "epoch")) for run in runs)
    for axes in figure.axes:
        axes.set(xlabel="epoch", xlim=(0, 1.02 * last_epoch))
    return _finish(figure, _common_settings(runs), figure.axes)


def _draw_losses(axes: "Axes", runs: Sequence[LoggedRun]) -> None:
    """Draws the cross-entropy, with triangles for values beyond `robust_limits`."""
    drawn = [
        (run.column(kind, "epoch"), run.column(kind, "cross_entropy"), kind, number)
        for number, run in enumerate(runs)
        for kind in ("train", "eval")
    ]
    low, high = robust_limits([value for _, values, *_ in drawn for value in values])
    edge = low + 0.97 * (high - low)
    has_outliers = False
    for epochs, values, kind, number in drawn:
        color, style = f"C{number}", "-" if kind == "train" else "o--"
        axes.plot(epochs, values, style, color=color, linewidth=1, markersize=4)
        points = zip(epochs, values, strict=True)
        beyond = [(epoch, value) for epoch, value in points if value > high]
        if kind == "train" and beyond:
            beyond = [max(beyond, key=lambda point: point[1])]
        has_outliers |= bool(beyond)
        for epoch, value in beyond:
            axes.plot(epoch, edge, "^", color=color)
            text = f"  {value:.3g}"
            axes.text(epoch, edge, text, va="center", fontsize=9, color=color)
    axes.set_ylim(low, high)
    labels = {"-": "training", "o--": "validation", "^": "beyond the axis"}
    for style, label in list(labels.items())[: 2 + has_outliers]:
        axes.plot([], [], style, color=_GREY, markersize=4, label=label)
    axes.set_title("Cross-entropy", loc="left")
    axes.legend(**_LEGEND)


def _draw_accuracy(axes: "Axes", runs: Sequence[LoggedRun]) -> None:
    """Draws top-1 accuracy or mAP; for a single run top-5 accuracy too."""
    is_alone = len(runs) == 1
    metric, name = main_metric(runs[0].config)

    def draw(run: LoggedRun, kind: str, metric: str, label: str, look: str) -> None:
        percents = [100 * fraction for fraction in run.column(kind, metric)]
        style, color = look.split()
        if percents:
            label = f"{label}: {percents[-1]:.2f} %"  # The last value.
            epochs = run.column(kind, "epoch")
            axes.plot(epochs, percents, style, color=color, label=label, markersize=4)

    for number, run in enumerate(runs):
        has_top5 = metric == "top1" and is_alone
        if has_top5 and not accuracy.top5_is_certain(run.config.num_classes):
            draw(run, "eval", "top5", "top-5", f"o-- {_GREY}")
        for kind, (style, suffix) in _EVALUATIONS.items():
            label = name if is_alone else run.name.replace("$", r"\$")
            draw(run, kind, metric, label + suffix, f"{style} C{number}")
    counts = {f"{count:,}" for run in runs for count in run.column("eval", "count")}
    on = f" on {' and '.join(sorted(counts))} images" if counts else ": none yet"
    what = "accuracy" if is_alone and metric == "top1" else name
    axes.set_title(f"Validation {what}{on}, %", loc="left")
    axes.set_ylim(0, 102)
    if counts:
        axes.legend(loc="lower right", **_LEGEND)


def _common_settings(runs: Sequence[LoggedRun]) -> str:
    form = "{0.model} at {0.image_size} px|recipe {0.recipe}"
    form += "|batch {0.global_batch_size:,}|{0.train_steps:,} steps"
    columns = zip(*(form.format(run.config).split("|") for run in runs), strict=True)
    return ", ".join(values[0] for values in columns if len(set(values)) == 1)


# The parts of a step, as `estimate` colors them.
STEP_PARTS = {
    "compute": ("compute", _BLUE),
    "exchange": ("exchange, not overlapped", "#e08e2b"),
    "stragglers": ("waiting for the slowest node", "#7b5ea7"),
    "input": ("waiting for images", "#5a9e5a"),
}


def estimate(
    hours: Mapping[int, float],
    knee: int,
    hours_limit: float,
    parts: Mapping[int, Mapping[str, float]],
    title: str,
) -> "Figure":
    """Returns a figure of the hours of a training, and of the parts of a step.

    Hours and fractions of a step by `STEP_PARTS` are by the number of nodes, which
    rises. A knee at the last one isn't marked, nor a limit of 0.
    """
    figure, (left, right) = _panels((10, 4.5), 1, 2)
    nodes = list(hours)
    left.loglog(nodes, list(hours.values()), color=_BLUE, label="predicted")
    perfect = [hours[nodes[0]] * nodes[0] / number for number in nodes]
    left.loglog(nodes, perfect, "--", color=_LIGHT_GREY, label="efficiency of 100 %")
    if knee != nodes[-1]:
        label = f"knee: {knee:,} nodes"
        left.plot([knee], [hours[knee]], "o", color=_RED, label=label)
    if hours_limit:
        label = f"{hours_limit:g} h"
        left.axhline(hours_limit, color=_RED, linewidth=0.8, label=label)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.set(xlabel="nodes", ylabel="hours of training")
    left.legend(**_LEGEND)
    labels = [f"{number:,}" for number in parts]
    bottom = [0.0] * len(parts)
    for name, (label, color) in STEP_PARTS.items():
        heights = [100 * fractions.get(name, 0.0) for fractions in parts.values()]
        if any(heights):
            right.bar(labels, heights, bottom=bottom, color=color, label=label)
            bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    right.set(xlabel="nodes", ylabel="% of a step", ylim=(0, 100))
    right.tick_params(axis="x", rotation=60, labelsize=8)
    right.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, **_LEGEND)
    return _finish(figure, title, [left])


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


def study(rows: Sequence[StudyRow], title: str) -> "Figure":
    """Returns the figure of a study: accuracy over bytes, and over time.

    Each row is a point: the median of its seeds, with a bar from the worst to the best.
    """
    figure, (over_bytes, over_time) = _panels((12, 5.2), 1, 2, sharey=True)
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
    return _finish(figure, title, figure.axes)


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
        axes.axhline(middle, color=_GREY, linewidth=1, linestyle=":")


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
        entries[label] = examples(_GREY, "white", *(of[way] for of in in_use))
    entries["filled: error feedback"] = examples(_GREY, _GREY, "o")
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
    handlers = {tuple: HandlerTuple(ndivide=None)}
    labels = list(entries)
    axes.legend(entries.values(), labels, handler_map=handlers, **_LEGEND, **place)
