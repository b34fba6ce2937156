"""All pictures: a recipe's schedule, learning curves, an estimate.

Matplotlib is imported where a picture is drawn, since it takes half a second.
"""

import io
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resnet.base import atomic_files
from resnet.base.errors import UserError
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
LEGEND: Any = {"frameon": False, "fontsize": 9}
_BLUE, GREY, _LIGHT_GREY, _RED = "#2a6fb0", "#666666", "#999999", "#c0392b"


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


def panels(
    size: tuple[float, float], rows: int, columns: int, **options: Any
) -> "tuple[Figure, Sequence[Axes]]":
    """Returns a figure of a size in inches, and its axes in rows and columns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **options)


def finish(figure: "Figure", title: str, with_grid: "Sequence[Axes]") -> "Figure":
    """Returns a figure with its title, and grids in some of its axes."""
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
    figure, all_axes = panels(
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
    return finish(figure, f"{title} steps", figure.axes)


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
    figure, (losses, accuracy, rate) = panels((12, 3.6), 1, 3)
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
    return finish(figure, _common_settings(runs), figure.axes)


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
        axes.plot([], [], style, color=GREY, markersize=4, label=label)
    axes.set_title("Cross-entropy", loc="left")
    axes.legend(**LEGEND)


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
            draw(run, "eval", "top5", "top-5", f"o-- {GREY}")
        for kind, (style, suffix) in _EVALUATIONS.items():
            label = name if is_alone else run.name.replace("$", r"\$")
            draw(run, kind, metric, label + suffix, f"{style} C{number}")
    counts = {f"{count:,}" for run in runs for count in run.column("eval", "count")}
    on = f" on {' and '.join(sorted(counts))} images" if counts else ": none yet"
    what = "accuracy" if is_alone and metric == "top1" else name
    axes.set_title(f"Validation {what}{on}, %", loc="left")
    axes.set_ylim(0, 102)
    if counts:
        axes.legend(loc="lower right", **LEGEND)


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
    figure, (left, right) = panels((10, 4.5), 1, 2)
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
    left.legend(**LEGEND)
    labels = [f"{number:,}" for number in parts]
    bottom = [0.0] * len(parts)
    for name, (label, color) in STEP_PARTS.items():
        heights = [100 * fractions.get(name, 0.0) for fractions in parts.values()]
        if any(heights):
            right.bar(labels, heights, bottom=bottom, color=color, label=label)
            bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    right.set(xlabel="nodes", ylabel="% of a step", ylim=(0, 100))
    right.tick_params(axis="x", rotation=60, labelsize=8)
    right.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, **LEGEND)
    return finish(figure, title, [left])
