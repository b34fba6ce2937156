"""The curves of a report: the points of each metric of the table."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from resnet.config import phases
from resnet.config.config import Derived
from resnet.metrics.jsonl import NOT_METRICS, Line, make_line
from resnet.metrics.table import METRICS, RANK_SPEEDS, SERIES, Metric, Series
from resnet.report.folder import RunFolder

_MIN_TO_SMOOTH = 30
_SMOOTHED_PARTS = 40  # A smoothed line has about so many independent values.
_MAX_RANKS = 8  # Up to this number, each rank has its own curve.
# Their order numbers the look of each, the same in all charts.
_KINDS = {
    **{"train": "training", "eval": "validation"},
    **{"eval_ema": "validation, EMA weights", "eval_train": "training images"},
}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """The values of a metric in the lines of a kind."""

    label: str  # What the legend calls it.
    color: int  # The number of its color.
    dash: int  # The number of its dash pattern.
    is_training: bool  # Rather than evaluations.
    steps: Sequence[int]
    epochs: Sequence[float]
    values: Floats  # `[n]` in the unit of the chart, as are the steps and epochs.
    window: int  # The values in one of the smoothed curve over them; 1 for none.

    @property
    def finite(self) -> Floats:
        """The values that are finite."""
        return self.values[np.isfinite(self.values)]


@dataclass(frozen=True)
class Chart:
    """A metric and its curves, at least one."""

    metric: Metric
    curves: Sequence[Curve]


def of_runs(runs: Sequence[RunFolder]) -> list[Chart]:
    """Returns a chart of each metric that any of the runs has logged."""
    charts = []
    for metric in METRICS:
        if not metric.is_of_ranks:
            charts.append(Chart(metric, _curves(metric, runs)))
        elif len(runs) == 1:
            charts.append(Chart(metric, _of_ranks(metric, runs[0])))
    names = {name for run in runs for line in run.lines for name in line}
    for name in sorted(names.difference(SERIES, NOT_METRICS)):
        metric = Metric(name, (Series(name),), is_noisy=True, starts_at_zero=False)
        charts.append(Chart(metric, _curves(metric, runs)))
    return [chart for chart in charts if chart.curves]


def _curves(metric: Metric, runs: Sequence[RunFolder]) -> list[Curve]:
    curves: list[Curve] = []
    labels = [] if metric.series[0].label else list(_KINDS.values())
    for number, run in enumerate(runs):
        for kind, name, words in _series_of(metric, run):
            if words not in labels:
                labels.append(words)
            dash = labels.index(words)
            label, color = words, dash
            if len(runs) > 1:
                label, color = f"{run.name}: {words}", number
            lines = [line for line in run.of_kind(kind) if name in line]
            if name == "learning_rate":
                lines = [*_scheduled_before(run, lines[0]["step"]), *lines]
            values = [float(line[name]) for line in lines]
            curves.append(_curve(metric, kind, lines, values, label, (color, dash)))
    return curves


def _scheduled_before(run: RunFolder, step: int) -> list[Line]:
    """Returns lines with the schedule's learning rate for steps before a logged one."""
    if (config := run.config) is None:
        return []
    steps = range(Derived(config, 1).first_step + 1, step)
    try:
        return [
            make_line("train", at, config.epoch(at), {"learning_rate": rate})
            for at in steps[:: 1 + len(steps) // 100]  # A line of 100 points is smooth.
            for rate in [phases.learning_rate(config.phases, at - 1)]
        ]
    except (ArithmeticError, LookupError, ValueError):  # Damaged settings.
        return []


def _series_of(metric: Metric, run: RunFolder) -> Iterator[tuple[str, str, str]]:
    """Yields kind of line, name and words of each series that a run has."""
    for series in metric.series if metric.title else ():
        name = series.name
        for kind in dict.fromkeys(line["kind"] for line in run.lines if name in line):
            words = series.label and series.label + ", EMA weights" * (
                kind == "eval_ema"
            )
            yield kind, name, words or _KINDS.get(kind, kind)


def _of_ranks(metric: Metric, run: RunFolder) -> list[Curve]:
    """Returns the speed of each rank, or of the slowest and the fastest one."""
    lines = [line for line in run.of_kind("train") if line.get(RANK_SPEEDS)]
    speeds = [np.array(line[RANK_SPEEDS], np.float64) for line in lines]
    counts = {len(of_line) for of_line in speeds}
    if max(counts, default=0) < 2:
        return []
    names = [f"rank {rank}" for rank in range(max(counts))]
    if len(counts) > 1 or len(names) > _MAX_RANKS:
        names = ["slowest rank", "median", "fastest rank"]
        speeds = [np.percentile(of_line, [0, 50, 100]) for of_line in speeds]
    columns = np.transpose(speeds).tolist()
    return [
        _curve(metric, "train", lines, values, name, (number, number))
        for number, (name, values) in enumerate(zip(names, columns, strict=True))
    ]


def _curve(
    metric: Metric,
    kind: str,
    lines: Sequence[Line],
    values: Sequence[float],
    label: str,
    look: tuple[int, int],
) -> Curve:
    """Returns the curve of the values of some lines, with a color and a dash."""
    window = 1
    if metric.is_noisy and kind == "train" and len(lines) >= _MIN_TO_SMOOTH:
        window = max(3, len(lines) // _SMOOTHED_PARTS | 1)
    return Curve(
        label=label,
        color=look[0],
        dash=look[1],
        is_training=kind == "train",
        steps=[int(line["step"]) for line in lines],
        epochs=list(map(epoch_of, lines)),
        values=np.array(values) * (100 if metric.unit == "%" else 1),
        window=window,
    )


def epoch_of(line: Line) -> float:
    """Returns the epoch of a line; its step if it has none."""
    return float(line["epoch"] if "epoch" in line else line["step"])


def smoothed(values: Floats, window: int) -> Floats:
    """Returns centered means of `window` finite values, odd; NaN of none; `[n]`."""
    is_finite = np.isfinite(values)
    half = window // 2

    def sums(of: Floats) -> Floats:
        ends = np.concatenate([[0.0], np.cumsum(of)])
        last = np.minimum(np.arange(len(of)) + half + 1, len(of))
        first = np.maximum(np.arange(len(of)) - half, 0)
        return np.asarray(ends[last] - ends[first])

    counts = sums(is_finite.astype(np.float64))
    totals = sums(np.where(is_finite, values, 0.0))
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def thinned(values: Floats, limit: int) -> list[int]:
    """Returns the indices of the extremes of `limit` / 2 equal stretches of values."""
    if len(values) <= limit:
        return list(range(len(values)))
    edges = np.linspace(0, len(values), limit // 2 + 1).astype(np.int64)
    kept: set[int] = set()
    for first, end in itertools.pairwise(map(int, edges)):
        part = values[first:end]
        if np.isfinite(part).any():
            kept |= {first + int(np.nanargmin(part)), first + int(np.nanargmax(part))}
    return sorted(kept)


def evenly(count: int, limit: int) -> list[int]:
    """Returns at most `limit` (2 or more) of `count` indices, evenly, and both ends."""
    if count <= limit:
        return list(range(count))
    return sorted({round(index) for index in np.linspace(0, count - 1, limit)})
