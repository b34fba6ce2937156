"""The curves of a report: which metrics are drawn together, and their points."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from resnet.metrics import series
from resnet.metrics.jsonl import RANK_SPEEDS, Line
from resnet.report.folder import RunFolder

_MAX_POINTS = 400  # About the pixels of a chart on half a screen.
_MIN_TO_SMOOTH = 30
_MAX_MARKERS = 40  # More markers of evaluations would touch.
_SMOOTHED_PARTS = 40  # A smoothed line has about so many independent values.
_NOT_METRICS = ("kind", "step", "epoch", "time", "seconds")
_MAX_RANKS = 8  # Up to this number, each rank has its own curve.
_SUFFIXES = {"eval_ema": ", EMA weights"}


@dataclass(frozen=True)
class Metric:
    """A metric, or several that are drawn together.

    Attributes:
        title: The title of the chart.
        names: The names of the metrics in the lines, and the words for them.
        unit: The unit of the axis; may be empty. "%" multiplies the values by 100.
        is_noisy: Whether a smoothed line helps to see the values of training.
        has_outliers: Whether the axis leaves out values far above the others.
        starts_at_zero: Whether the axis includes 0.
        about: A sentence on what the chart shows; may be empty.
    """

    title: str
    names: tuple[tuple[str, str], ...]
    unit: str = ""
    is_noisy: bool = False
    has_outliers: bool = False
    starts_at_zero: bool = True
    about: str = ""


METRICS = (
    Metric(
        "Cross-entropy",
        (("cross_entropy", ""),),
        is_noisy=True,
        has_outliers=True,
        starts_at_zero=False,
        about="Without the weight penalty.",
    ),
    Metric("Weight penalty", (("weight_penalty", ""),), starts_at_zero=False),
    Metric("Top-1 accuracy", (("top1", ""),), "%", starts_at_zero=False),
    Metric("Top-5 accuracy", (("top5", ""),), "%", starts_at_zero=False),
    Metric("Learning rate", (("learning_rate", ""),)),
    Metric(
        "Images per second",
        (("images_per_second", ""),),
        "images/s",
        is_noisy=True,
        about="Over all ranks.",
    ),
    Metric(
        "Time spent waiting",
        (("input_wait_share", "for input"), ("exchange_share", "for the exchange")),
        "%",
        is_noisy=True,
        about="For input on the slowest rank; for the exchange of gradients on rank 0,"
        " where Muon computes some updates meanwhile.",
    ),
    Metric(
        "Bytes of gradients per step",
        (
            ("bytes_sent_per_step", "sent"),
            ("message_bytes_per_step", "messages"),
        ),
        "bytes",
        about="Of rank 0. The messages are its gradients, coded if compressed. With"
        " Muon, it sends updates too.",
    ),
    Metric(
        "Error of compression",
        (("compression_error", ""),),
        is_noisy=True,
        about="Norm of the compression error, divided by the norm of the gradients.",
    ),
    Metric(
        "Staleness",
        (("staleness_mean", "mean"), ("staleness_max", "largest")),
        "updates",
        about="Updates of the servers between a worker's read and its update.",
    ),
    Metric("Skipped records", (("skipped_records", ""),), "records"),
)
_LOSS = Metric(
    "Loss",
    (("loss", ""),),
    is_noisy=True,
    has_outliers=True,
    starts_at_zero=False,
    about="Cross-entropy plus weight penalty, which this log doesn't tell apart.",
)


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: What the legend calls it.
        color: The number of its color.
        dash: The number of its dash pattern.
        style: "raw" beside a smoothed curve, "smooth", "line", or "points" for lines
            with a point at each value.
        epochs: `[n]`.
        steps: `[n]`.
        values: `[n]`, in the unit of the chart.
        rows: The same of all lines, for the table: steps, epochs and values.
    """

    label: str
    color: int
    dash: int
    style: str
    epochs: Sequence[float]
    steps: Sequence[int]
    values: Sequence[float]
    rows: tuple[Sequence[int], Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Chart:
    """A metric and its curves; `window` is the number of lines in a smoothed value."""

    metric: Metric
    curves: Sequence[Curve]
    window: int = 1


def of_runs(runs: Sequence[RunFolder]) -> list[Chart]:
    """Returns a chart of each metric that any of the runs has logged."""
    charts = [chart for metric in METRICS if (chart := _chart(metric, runs))]
    undivided = [run for run in runs if _lacks_cross_entropy(run)]
    if undivided and (chart := _chart(_LOSS, runs, undivided)):
        charts.insert(0, chart)
    if len(runs) == 1 and (chart := _rank_speeds(runs[0])):
        charts.append(chart)
    known = {name for metric in (*METRICS, _LOSS) for name, _ in metric.names}
    known |= {*_NOT_METRICS, RANK_SPEEDS, "count"}
    others = {
        name: None for run in runs for line in run.lines for name in line.keys() - known
    }
    for name in sorted(others):
        metric = Metric(name, ((name, ""),), is_noisy=True, starts_at_zero=False)
        if chart := _chart(metric, runs):
            charts.append(chart)
    return charts


def _lacks_cross_entropy(run: RunFolder) -> bool:
    lines = run.of_kind("train")
    return bool(lines) and not any("cross_entropy" in line for line in lines)


def _chart(
    metric: Metric,
    runs: Sequence[RunFolder],
    drawn: Sequence[RunFolder] | None = None,
) -> Chart | None:
    """Returns the chart of a metric; None if no run has logged it."""
    curves: list[Curve] = []
    window = 1
    labels: list[str] = []
    for number, run in enumerate(runs):
        if drawn is not None and run not in drawn:
            continue
        for kind, name, words in _series_of(metric, run):
            label = f"{run.name}: {words}" if len(runs) > 1 else words
            if words not in labels:
                labels.append(words)
            dash = labels.index(words)
            color = number if len(runs) > 1 else dash
            lines = [line for line in run.of_kind(kind) if name in line]
            added, size = _curves(metric, lines, name, label, color, dash, kind)
            curves += added
            window = max(window, size)
    return Chart(metric, curves, window) if curves else None


def _series_of(metric: Metric, run: RunFolder) -> Iterator[tuple[str, str, str]]:
    """Yields kind of line, name and words of each series that a run has."""
    for name, words in metric.names:
        for kind in dict.fromkeys(line["kind"] for line in run.lines):
            if any(name in line for line in run.of_kind(kind)):
                what = "training" if kind == "train" else "validation"
                suffix = _SUFFIXES.get(kind, "")
                if kind not in ("train", "eval", *_SUFFIXES):
                    what = kind
                yield kind, name, (words or what) + suffix


def _curves(
    metric: Metric,
    lines: Sequence[Line],
    name: str,
    label: str,
    color: int,
    dash: int,
    kind: str,
) -> tuple[list[Curve], int]:
    """Returns the curves of a series, and the number of lines that are smoothed."""
    factor = 100 if metric.unit == "%" else 1
    values = np.array([factor * float(line[name]) for line in lines])
    steps = [int(line["step"]) for line in lines]
    epochs = [epoch_of(line) for line in lines]
    rows = (steps, epochs, values.tolist())

    def curve(style: str, of: np.ndarray) -> Curve:
        kept = series.thinned(of, _MAX_POINTS)
        return Curve(
            *(label, color, dash, style),
            [epochs[index] for index in kept],
            [steps[index] for index in kept],
            [float(of[index]) for index in kept],
            rows,
        )

    if kind != "train":
        return [curve("points" if len(values) <= _MAX_MARKERS else "line", values)], 1
    if not metric.is_noisy or len(values) < _MIN_TO_SMOOTH:
        return [curve("line", values)], 1
    window = max(3, len(values) // _SMOOTHED_PARTS | 1)
    smooth = series.smoothed(values, window)
    return [curve("raw", values), curve("smooth", smooth)], window


def _rank_speeds(run: RunFolder) -> Chart | None:
    """Returns the chart of each rank's speed, or of the slowest and the fastest."""
    lines = [line for line in run.of_kind("train") if line.get(RANK_SPEEDS)]
    counts = {len(line[RANK_SPEEDS]) for line in lines}
    if not lines or max(counts) < 2:
        return None
    if counts == {max(counts)} and max(counts) <= _MAX_RANKS:
        names = [f"rank {rank}" for rank in range(max(counts))]
        values = [[float(speed) for speed in line[RANK_SPEEDS]] for line in lines]
    else:
        names = ["slowest rank", "median", "fastest rank"]
        values = [
            [min(speeds), float(np.median(speeds)), max(speeds)]
            for line in lines
            for speeds in [[float(speed) for speed in line[RANK_SPEEDS]]]
        ]
    metric = Metric(
        "Images per second of each rank",
        (),
        "images/s",
        is_noisy=True,
        about="While it computes: without the time in which it waits for input and for"
        " the exchange. The slowest rank sets the pace of all.",
    )
    curves: list[Curve] = []
    window = 1
    for number, name in enumerate(names):
        own = [
            {**line, "speed": of_line[number]}
            for line, of_line in zip(lines, values, strict=True)
        ]
        added, window = _curves(metric, own, "speed", name, number, number, "train")
        curves += added
    return Chart(metric, curves, window)


def epoch_of(line: Line) -> float:
    """Returns the epoch of a line; its step if it has none."""
    return float(line["epoch"] if "epoch" in line else line["step"])


def last_value(curve: Curve) -> float | None:
    """Returns the last finite value of a curve; None if there is none."""
    values = [value for value in curve.rows[2] if math.isfinite(value)]
    return values[-1] if values else None
