"""Estimates how long a training takes on 1 to 4,096 nodes.

python launch/estimate.py --recipe=tpu_90ep_24k --rate=79.1 --ranks_per_node=2
python launch/estimate.py --benchmark=node.json --bandwidth_gbit=10 --within=1h

It prints the seconds of a step and their parts, the hours to the end, the
efficiency and the node-hours, by formulas (docs/estimating.md), where more
nodes stop paying, and whether compressed gradients pay. How fast a node is has
to be measured or stated.
"""

import bisect
import dataclasses
import itertools
import json
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from launch import estimator
from launch.estimator import MOST_NODES, Cluster, Prediction, Workload
from resnet.base import cli, commands, json_file
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.base.settings import COUNT, COUNT_OR_ZERO, setting
from resnet.base.text import counted, estimated, hanging
from resnet.config import command_line, recipe_file, topics
from resnet.config.command_line import TrainFlags
from resnet.config.compression import METHODS, CompressionSettings
from resnet.config.config import Config
from resnet.config.phases import PhaseSettings
from resnet.config.recipe import TrainingSettings
from resnet.config.resolve import ScheduleOverrides, resolve

_GIGABIT = 1e9 / 8  # Bytes.
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_POSITIVE = (1e-9, 1e12)  # With others, times may be more than a float can hold.


@dataclass(frozen=True, kw_only=True)
class NodeSpeed:
    """The speed of a node, and the question."""

    TOPIC: ClassVar[str] = "Speed of a node"

    benchmark: tuple[str, ...] = setting(
        (),
        "In place of --rate, files that eval/benchmark.py --json printed on one node.",
    )
    rate: float | None = setting(
        None,
        "The images per second that one node trains on by itself.",
        bounds=_POSITIVE,
        unset="required, or `--benchmark`",
    )
    ranks_per_node: int | None = setting(
        None,
        "The number of ranks on each node.",
        bounds=COUNT,
        unset="the benchmark's, or 1",
    )
    step_noise: float | None = setting(
        None,
        "The standard deviation of a node's step as a fraction of it.",
        bounds=(0, 1),
        unset="the benchmark's, or 0.02",
    )


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked."""

    TOPIC: ClassVar[str] = "Question"

    nodes: tuple[int, ...] = setting(
        (),
        "The numbers of nodes in the table, separated by commas.",
        unset="about the powers of two up to 4,096",
    )
    within: str = setting(
        "", "The time of the training to find the nodes for, such as 1h."
    )
    plot: str = setting("", "The file for a figure, such as estimate.png.")
    json: bool = setting(False, "Print the estimate as JSON too, in the last line.")
    compare_on: int | None = setting(
        None,
        "The number of nodes on which compression methods are compared.",
        unset="that of `--within`, or the knee",
    )


@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """The network and the disks."""

    TOPIC: ClassVar[str] = "Cluster"

    bandwidth_gbit: float = setting(
        100.0,
        "The bandwidth of a node in each direction, in Gbit/s, full duplex.",
        bounds=_POSITIVE,
        common=True,
    )
    latency_us: float = setting(
        2.0,
        "The latency of a message between nodes, in microseconds.",
        bounds=(0, 1e9),
        common=True,
    )
    allreduce: str = setting(
        "auto",
        "The algorithm that sums gradients, one of {names}; auto is the fastest one.",
        names=estimator.ALLREDUCES,
    )
    overlap: float = setting(
        1.0,
        "The fraction of the backward pass that overlaps with the exchange: 1 with"
        " cores left for communication, 0 where all cores compute.",
        bounds=(0, 1),
    )
    shared_disk_gbit: float | None = setting(
        None,
        "The read bandwidth of a disk that all nodes share, in Gbit/s.",
        bounds=_POSITIVE,
        unset="a disk in each node",
    )
    image_kilobytes: float = setting(
        110.0,
        "The size of an image's record in kB, with --shared_disk_gbit.",
        bounds=_POSITIVE,
    )
    num_classes: int = setting(
        0,
        "The number of classes; 0 for that of the recipe's data set.",
        bounds=COUNT_OR_ZERO,
        topic=topics.RECIPE,
    )


# Flags of a run that its duration depends on.
_OF_RUN: dict[type, str] = {
    TrainingSettings: "model global_batch_size",
    ScheduleOverrides: "train_epochs train_steps",
    CompressionSettings: (
        "compress method ratio qstates qsgd_bucket kept_values exchange"
    ),
    PhaseSettings: "sync_every qsr_coefficient local_velocities",
}
FLAGS: cli.Groups = (
    cli.Flags(NodeSpeed, common=True),
    cli.Flags(Question, common=True),
    ClusterFlags,
    cli.Flags(TrainFlags, names=("recipe",)),
    *(
        cli.Flags(kind, tuple(names.split()), has_defaults=False, unset="recipe")
        for kind, names in _OF_RUN.items()
    ),
)


def main(argv: Sequence[str]) -> int:
    """Estimates as the flags say, and prints."""
    line = cli.parse(argv, __doc__, FLAGS)
    question, flags = line.of(Question), line.of(ClusterFlags)
    recipe = recipe_file.get(line.values["recipe"])
    overrides = command_line.overrides(line)
    config = resolve(recipe, overrides, recipe.num_train_examples, ())
    cluster, image_size = read_cluster(line.of(NodeSpeed), flags, config)
    training = estimator.workload_of(
        config, flags.num_classes, image_size, 1e3 * flags.image_kilobytes
    )
    possible = estimator.dividing(config.global_batch_size, cluster.ranks_per_node)
    numbers = sorted(set(question.nodes)) or estimator.about_powers_of_two(possible)
    compared = [question.compare_on] if question.compare_on is not None else []
    for flag, chosen in (("--nodes", numbers), ("--compare_on", compared)):
        require_dividing(chosen, possible, config, cluster, flag)
    seconds = parse_time(question.within, "--within") if question.within else 0.0
    predictions = {
        number: estimator.predict(training, cluster, number, flags.allreduce)
        for number in possible
    }
    shown = [predictions[number] for number in numbers]
    in_order = list(predictions.values())
    knee, within = estimator.knee(in_order), estimator.within(in_order, seconds)
    told = answers(within, question.within, knee, in_order)
    texts = [describe(training, cluster, config), table(shown), told]
    values: dict[str, Any] = {
        "recipe": config.recipe,
        "cluster": {
            name: value if math.isfinite(value) else None
            for name, value in dataclasses.asdict(cluster).items()
        },
        "nodes": [dataclasses.asdict(prediction) for prediction in shown],
        "knee": dataclasses.asdict(knee),
        "within": dataclasses.asdict(within) if within else None,
    }
    compared_on = question.compare_on or (within or knee).num_nodes
    if compared_on > 1:
        text, exchanges = compare(training, cluster, compared_on, flags.allreduce)
        texts.append(text)
        values["exchanges"] = exchanges
    if question.plot:
        from resnet.metrics import figure

        parts = {
            of.num_nodes: {
                part: getattr(of, part) / of.step_seconds for part in figure.STEP_PARTS
            }
            for of in shown
        }
        hours = {number: of.hours for number, of in predictions.items()}
        title = f"{config.recipe}, {cluster.images_per_second:.4g} images/s a node"
        drawn = figure.estimate(hours, knee.num_nodes, seconds / 3600, parts, title)
        figure.write(drawn, pathlib.Path(question.plot), "--plot")
    print_result("\n\n".join(texts))
    if question.json:
        print_result(json.dumps(values))
    return 0


def require_dividing(
    numbers: Sequence[int],
    possible: Sequence[int],
    config: Config,
    cluster: Cluster,
    flag: str,
) -> None:
    """Refuses numbers of nodes that don't divide a batch, naming the nearest ones."""
    batch, per_node = config.global_batch_size, cluster.ranks_per_node
    if not possible:
        raise UserError(
            f"--ranks_per_node must divide the global batch of {batch:,}; got"
            f" {per_node}. Choose a divisor, or another --train_batch_size."
        )
    for number in numbers:
        if not 1 <= number <= MOST_NODES:
            raise UserError(f"{flag} must be from 1 to {MOST_NODES:,}; got {number:,}.")
        if number not in possible:
            index = bisect.bisect(possible, number)
            nearest = [f"{n:,}" for n in possible[max(index - 1, 0) : index + 1]]
            raise UserError(
                f"{number:,} nodes of {counted(per_node, 'rank')} don't divide the"
                f" global batch of {batch:,}. The nearest numbers of nodes are"
                f" {' and '.join(nearest)}."
            )


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark of a node has found, as far as it is read."""

    images_per_second: float  # The median of the steps'.
    min: float
    max: float
    batch_size: int  # Of a rank.
    ranks: int
    steps: int
    image_size: int
    model: str
    infer: bool

    def __post_init__(self) -> None:
        for name in ("images_per_second", "min", "max", "batch_size", "ranks", "steps"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name!r} must be above 0; got {getattr(self, name)}")
        if self.infer:
            raise UserError("it is of evaluation (--infer), not of training")

    @property
    def step_noise(self) -> float:
        """The standard deviation of a step, from the lowest and highest rate."""
        spread = self.images_per_second * (1 / self.min - 1 / self.max)
        # The mean range of normal numbers is twice their expected maximum.
        return spread / (2 * estimator.expected_maximum(self.steps))


def read_cluster(
    speed: NodeSpeed, flags: ClusterFlags, config: Config
) -> tuple[Cluster, int]:
    """Returns the cluster, and the side of the images that its rate is for."""
    if bool(speed.benchmark) == (speed.rate is not None):
        got = "both" if speed.benchmark else "neither"
        raise UserError(
            f"the speed of a node is needed, by --rate or by --benchmark; got {got}."
            f" {commands.command('resnet-benchmark', '--json')} on one node measures"
            " it."
        )
    rate, fixed, ranks, noise = speed.rate or 0.0, 0.0, 1, Cluster.step_noise
    image_size = config.image_size
    if speed.benchmark:
        results = [read_benchmark(path, config.model) for path in speed.benchmark]
        ranks, image_size = results[0].ranks, results[0].image_size
        for path, result in zip(speed.benchmark, results, strict=True):
            if (result.ranks, result.image_size) != (ranks, image_size):
                raise UserError(
                    "the files of --benchmark must have the same ranks and image_size;"
                    f" got {ranks} and {image_size} in {speed.benchmark[0]},"
                    f" {result.ranks} and {result.image_size} in {path}."
                )
        rate, fixed = fitted_speed(results)
        if noises := [result.step_noise for result in results if result.steps > 1]:
            noise = statistics.median(noises)
    disk = flags.shared_disk_gbit
    return Cluster(
        images_per_second=rate,
        fixed_seconds=fixed,
        ranks_per_node=speed.ranks_per_node or ranks,
        latency=1e-6 * flags.latency_us,
        bandwidth=_GIGABIT * flags.bandwidth_gbit,
        overlap=flags.overlap,
        step_noise=noise if speed.step_noise is None else speed.step_noise,
        shared_disk=math.inf if disk is None else _GIGABIT * disk,
    ), image_size


def fitted_speed(results: Sequence[Benchmark]) -> tuple[float, float]:
    """Fits a line to the seconds of steps: images/s, and seconds at 0 images (>= 0)."""
    images = [result.batch_size * result.ranks for result in results]
    rates = [result.images_per_second for result in results]
    seconds = [count / rate for count, rate in zip(images, rates, strict=True)]
    if len(set(images)) > 1:
        slope, fixed = statistics.linear_regression(images, seconds)
        if fixed >= 0 and slope > 0:
            return 1 / slope, fixed
    return sum(images) / sum(seconds), 0.0


def read_benchmark(path: str, model: str) -> Benchmark:
    """Returns the results of a benchmark of one node, of a network."""
    with json_file.naming(path, "what eval/benchmark.py --json printed (--benchmark)"):
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it isn't text"
            raise UserError(f"it can't be read: {reason}") from error
        text = text[text.find("{") :]  # After a table.
        values = json_file.parse(text, dict, "its last line", "JSON")
        names = [field.name for field in dataclasses.fields(Benchmark)]
        known = {name: values[name] for name in names if name in values}
        result = json_file.instance(Benchmark, known)
        if result.model != model:
            raise UserError(
                f"it is of {result.model}, and the recipe's network is {model}."
                f" Measure again with --model={model}"
            )
    return result


def parse_time(text: str, flag: str) -> float:
    """Returns a time such as 1h or 45min in seconds; UserError if it isn't above 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
    if not match or not float(match[1]):
        raise UserError(f"{flag} must be a time above 0 in s, min or h; got {text!r}.")
    return float(match[1]) * _SECONDS[match[2]]


def describe(workload: Workload, cluster: Cluster, config: Config) -> str:
    """Returns what is estimated, in lines."""
    step, disk = "", "each node reads its own disk"
    if cluster.fixed_seconds:
        step = f" and {cluster.fixed_seconds:.3g} s a step"
    if cluster.shared_disk < math.inf:
        together = _number(cluster.shared_disk / _GIGABIT)
        disk = f"all nodes read {together} Gbit/s together"
    facts = {
        "training": (
            f"{config.recipe}: {config.model}, {workload.num_steps:,} steps of"
            f" {workload.global_batch_size:,} images,"
            f" {workload.gradient_bytes / 1e6:,.1f} MB of gradients"
        ),
        "exchange": _exchange(workload),
        "node": (
            f"{cluster.images_per_second:.4g} images/s by itself{step},"
            f" {counted(cluster.ranks_per_node, 'rank')}, steps vary by"
            f" {cluster.step_noise:.1%}; {disk}"
        ),
        "network": (
            f"{_number(cluster.bandwidth / _GIGABIT)} Gbit/s a node,"
            f" {_number(1e6 * cluster.latency)} us a message, the exchange overlaps"
            f" with {cluster.overlap:.0%} of the backward pass"
        ),
    }
    lines = [line for name in facts for line in hanging(f"{name:10}", facts[name])]
    return "\n".join(lines)


def _exchange(workload: Workload) -> str:
    compression = workload.compression
    coding = ""
    if compression.compress != "none":
        coding = f", {compression.method} ({compression.compress})"
        if not any(METHODS[compression.method].seconds):
            coding += "; the time of its codec wasn't measured and counts as 0"
    averages = f"{workload.num_averages:,} averages of the weights (local SGD){coding}"
    if not workload.num_exchanges:
        return averages
    text = f"gradients{coding or ', not compressed'}"
    if not workload.num_averages:
        return text
    return f"{text} in {workload.num_exchanges:,} steps, then {averages}"


def table(predictions: Sequence[Prediction]) -> str:
    """Returns a table with a line for each number of nodes."""
    titles = "nodes batch s/step compute exchange waits input images/s effic. hours"
    widths = (5, 6, 7, 8, 9, 7, 7, 10, 7, 7, 7)
    rows: list[Sequence[str]] = [[*titles.split(), "node-h"]]
    for of in predictions:
        seconds = (of.step_seconds, of.compute, of.exchange, of.stragglers, of.input)
        rows.append(
            [
                str(of.num_nodes),
                str(of.global_batch_size // of.num_ranks),
                *map(_cell, (*seconds, of.images_per_second)),
                f"{of.efficiency:.0%}",
                *map(_cell, (of.hours, of.node_hours)),
            ]
        )
    return "\n".join("".join(map(str.rjust, row, widths)) for row in rows)


def answers(
    within: Prediction | None,
    time: str,
    knee: Prediction,
    predictions: Sequence[Prediction],
) -> str:
    """Returns sentences about the time that is asked for, and about the knee."""
    sentences = []
    if time and within:
        sentences.append(
            f"Within {time}: on {counted(within.num_nodes, 'node')}, in"
            f" {estimated(3600 * within.hours)}, for {_number(within.node_hours)}"
            f" node-hours, at an efficiency of {within.efficiency:.0%}."
        )
    elif time:
        fastest = min(predictions, key=lambda of: of.step_seconds)
        sentences.append(
            f"No number of nodes trains in {time}: the fastest, {fastest.num_nodes:,},"
            f" take {estimated(3600 * fastest.hours)}."
        )
    at_knee = (
        f"The knee is at {counted(knee.num_nodes, 'node')}"
        f" ({estimated(3600 * knee.hours)}, efficiency {knee.efficiency:.0%}):"
        " beyond it the efficiency falls faster than the time."
    )
    if knee is predictions[-1]:
        at_knee = (
            f"There is no knee up to {knee.num_nodes:,} nodes: the efficiency never"
            " falls faster than the time."
        )
    lines = (hanging("", text) for text in (*sentences, at_knee))
    return "\n".join(itertools.chain.from_iterable(lines))


def compare(
    training: Workload, cluster: Cluster, num_nodes: int, kind: str
) -> tuple[str, dict[str, Any]]:
    """Returns how ways to exchange gradients compare, as a table and for JSON."""
    ways = estimator.alternatives(training)
    dense = ways[estimator.NOT_COMPRESSED]
    first = estimator.predict(dense, cluster, num_nodes, kind)
    start = f"On {counted(num_nodes, 'node')}"
    lines = [f"{start:20}{'MB sent':>10}{'s/step':>10}{'speed':>8}  takes less time"]
    values: dict[str, dict[str, Any]] = {}
    for name, way in ways.items():
        prediction = estimator.predict(way, cluster, num_nodes, kind)
        values[name] = dataclasses.asdict(prediction)
        when = ""
        if way is not dense:
            limit = estimator.break_even(dense, way, cluster, num_nodes, kind)
            at_any = limit == math.inf
            values[name]["pays_at_any_bandwidth"] = at_any
            values[name]["pays_below_bytes_per_second"] = None if at_any else limit
            when = "never"
            if limit is not None:
                below = f"below {_number(limit / _GIGABIT)} Gbit/s"
                when = "at any bandwidth" if at_any else below
        sent, seconds = _cell(prediction.sent_bytes / 1e6), prediction.step_seconds
        speed = first.step_seconds / seconds
        text = f"{name:20}{sent:>10}{_cell(seconds):>10}{speed:>8.2f}  {when}"
        lines.append(text.rstrip())
    return "\n".join(lines), values


def _cell(value: float) -> str:
    """Returns a number in at most six characters, from 0 to ">9e99"."""
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
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(program.run(main))
