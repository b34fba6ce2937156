"""Predictions and answers as text of 80 columns."""

import math
import textwrap
from collections.abc import Mapping, Sequence

from launch.estimating import answers, durations
from launch.estimating.cluster import Cluster
from launch.estimating.prediction import Prediction
from launch.estimating.workload import Workload
from resnet.config.compression import METHODS

WIDTH = 80
_GIGABIT = 1e9 / 8  # Bytes.
# Title, width.
_COLUMNS = (
    *(("nodes", 5), ("batch", 6), ("s/step", 7), ("compute", 8)),
    *(("exchange", 9), ("waits", 7), ("input", 7), ("images/s", 10)),
    *(("effic.", 7), ("hours", 7), ("node-h", 7)),
)


def describe(workload: Workload, cluster: Cluster, recipe: str, model: str) -> str:
    """Returns what is estimated, in lines.

    Args:
        workload: The training.
        cluster: The cluster.
        recipe: The name of the recipe.
        model: The name of the network.
    """
    shared = "each node reads its own disk"
    if cluster.shared_disk < math.inf:
        shared = (
            f"all nodes read {_number(cluster.shared_disk / _GIGABIT)} Gbit/s together"
        )
    node = f"{cluster.images_per_second:.4g} images/s by itself"
    if cluster.fixed_seconds:
        node += f" and {cluster.fixed_seconds:.3g} s a step"
    facts = (
        (
            "training",
            f"{recipe}: {model}, {workload.num_steps:,} steps of"
            f" {workload.global_batch_size:,} images,"
            f" {workload.gradient_bytes / 1e6:,.1f} MB of gradients",
        ),
        ("exchange", _exchange(workload)),
        (
            "node",
            f"{node}, {cluster.ranks_per_node} rank(s), steps vary by"
            f" {cluster.step_noise:.1%}; {shared}",
        ),
        (
            "network",
            f"{_number(cluster.bandwidth / _GIGABIT)} Gbit/s a node,"
            f" {_number(1e6 * cluster.latency)} us a message, the exchange overlaps"
            f" with {cluster.overlap:.0%} of the backward pass",
        ),
    )
    lines = []
    for name, text in facts:
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=f"{name:10}", subsequent_indent=" " * 10
        )
    return "\n".join(lines)


def _exchange(workload: Workload) -> str:
    compression = workload.compression
    text = "gradients, not compressed"
    if compression.compress != "none":
        text = f"gradients, {compression.method} ({compression.compress})"
        if METHODS[compression.method].seconds is None:
            text += "; the time of its codec wasn't measured and counts as 0"
    if not workload.num_averages:
        return text
    averages = f"{workload.num_averages:,} averages of the weights (local SGD)"
    if not workload.num_exchanges:
        return averages
    return f"{text} in {workload.num_exchanges:,} steps, then {averages}"


def of_nodes(predictions: Sequence[Prediction]) -> str:
    """Returns a table with a line for each number of nodes."""
    lines = ["".join(f"{title:>{width}}" for title, width in _COLUMNS)]
    for one in predictions:
        cells = (
            f"{one.num_nodes}",
            f"{one.global_batch_size // one.num_ranks}",
            *(_cell(one.step_seconds), _cell(one.compute)),
            *(_cell(one.exchange), _cell(one.stragglers), _cell(one.input)),
            *(_cell(one.images_per_second), f"{one.efficiency:.0%}"),
            *(_cell(one.hours), _cell(one.node_hours)),
        )
        widths = [width for _, width in _COLUMNS]
        lines.append(
            "".join(f"{c:>{width}}" for c, width in zip(cells, widths, strict=True))
        )
    return "\n".join(lines)


def of_alternatives(
    predictions: Mapping[str, Prediction], break_evens: Mapping[str, float | None]
) -> str:
    """Returns a table of the ways to exchange gradients on one number of nodes.

    Args:
        predictions: The prediction for each way, the first one not compressed.
        break_evens: For all but the first, the bytes per second below which they take
            less time than it (`answers.break_even`).
    """
    first = predictions[answers.NOT_COMPRESSED]
    start = f"On {first.num_nodes:,} node(s)"
    lines = [f"{start:20}{'MB sent':>10}{'s/step':>10}{'speed':>8}  takes less time"]
    for name, one in predictions.items():
        speed = first.step_seconds / one.step_seconds
        when = _when(break_evens[name]) if name in break_evens else ""
        line = (
            f"{name:20}{_cell(one.sent_bytes / 1e6):>10}{_cell(one.step_seconds):>10}"
        )
        lines.append(f"{line}{speed:>8.2f}  {when}".rstrip())
    return "\n".join(lines)


def _when(bandwidth: float | None) -> str:
    if bandwidth is None:
        return "never"
    if bandwidth == math.inf:
        return "at any bandwidth"
    return f"below {_number(bandwidth / _GIGABIT)} Gbit/s"


def of_answers(
    within: Prediction | None,
    time: str | None,
    knee: Prediction,
    predictions: Sequence[Prediction],
) -> str:
    """Returns sentences about the time that is asked for, and about the knee.

    Args:
        within: The fewest nodes that train in the time; None if no number does.
        time: The time as it was asked for; None if none was.
        knee: The nodes at the knee.
        predictions: The predictions for all numbers of nodes, which rise.
    """
    sentences = []
    if time and within:
        sentences.append(
            f"{within.num_nodes:,} node(s) train in {time}: in"
            f" {durations.show(3600 * within.hours)}, for {_number(within.node_hours)}"
            f" node-hours, at an efficiency of {within.efficiency:.0%}."
        )
    elif time:
        fastest = min(predictions, key=lambda one: one.step_seconds)
        sentences.append(
            f"No number of nodes trains in {time}: the fastest, {fastest.num_nodes:,},"
            f" take {durations.show(3600 * fastest.hours)}."
        )
    if knee is predictions[-1]:
        sentences.append(
            f"There is no knee up to {knee.num_nodes:,} nodes: the efficiency never"
            " falls faster than the time."
        )
    else:
        sentences.append(
            f"The knee is at {knee.num_nodes:,} node(s)"
            f" ({durations.show(3600 * knee.hours)}, efficiency {knee.efficiency:.0%}):"
            " beyond it the efficiency falls faster than the time."
        )
    return "\n".join(line for text in sentences for line in textwrap.wrap(text, WIDTH))


def _cell(value: float) -> str:
    """Returns a number in at most six characters; it is 0 below 1e-9.

    It is ">9e99" for more than six characters hold, also if no float holds it.
    """
    if value < 1e-9:
        return "0"
    if not value < 9.9e99:
        return ">9e99"
    if not 1e-3 <= value < 1e6:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:.{decimals}f}"


def _number(value: float) -> str:
    """Returns a number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
