"""Estimates how long a training takes on 1 to 4,096 nodes.

python launch/estimate.py --recipe=tpu_90ep_24k --rate=79.1 --ranks_per_node=2
python launch/estimate.py --benchmark=node.json --bandwidth_gbit=10 --within=1h

It prints the seconds of a step and their parts, the hours to the end, the
efficiency and the node-hours, by formulas (docs/estimating.md), where more
nodes stop paying, and whether compressed gradients pay. How fast a node is has
to be measured or stated.
"""

import dataclasses
import functools
import json
import math
import pathlib
import sys
from typing import Any

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from launch import flag_topics
from launch.estimating import (
    answers,
    benchmark_file,
    collectives,
    durations,
    node_counts,
    table,
    workload,
)
from launch.estimating.cluster import Cluster
from launch.estimating.prediction import predict
from launch.estimating.workload import Workload
from resnet import setting_flags
from resnet.base import errors, settings
from resnet.base.errors import UserError
from resnet.config import recipe_file
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.config.phases import PhaseSettings
from resnet.config.recipe import TrainingSettings
from resnet.config.recipes import imagenet
from resnet.config.resolve import OVERRIDABLE, ScheduleOverrides, resolve
from resnet.metrics import figure

FLAGS = flags.FLAGS

_GIGABIT = 1e9 / 8  # Bytes.
# Settings of the run that its duration depends on; the recipe has those not given.
_OF_CLASSES = {
    ScheduleOverrides: ("train_steps", "train_epochs"),
    TrainingSettings: ("model", "global_batch_size"),
    PhaseSettings: ("sync_every", "qsr_coefficient", "local_velocities"),
    CompressionSettings: (
        *("compress", "method", "ratio", "qstates", "qsgd_bucket"),
        *("kept_values", "exchange"),
    ),
}


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program.

    It is called when the program starts, not when it is imported, since training
    defines flags of the same names.
    """
    define_string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    define_float = functools.partial(flags.DEFINE_float, flag_values=flag_values)
    define_integer = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
    define_list = functools.partial(flags.DEFINE_list, flag_values=flag_values)
    define_string(
        "recipe",
        imagenet.TPU_90EP_24K.name,
        "The recipe to train: a name that resnet_main.py --list_recipes prints, or a"
        " JSON file.",
    )
    define_float(
        "rate", None, "The images per second that one node trains on by itself."
    )
    define_list(
        "benchmark",
        None,
        "In place of --rate, files with what eval/benchmark.py --json printed on one"
        " node, for one batch size each, separated by commas.",
    )
    define_integer(
        "ranks_per_node",
        None,
        "The number of ranks on each node; unset, that of the benchmark, or 1.",
    )
    define_list(
        "nodes",
        None,
        "The numbers of nodes in the table, separated by commas; unset, about the"
        " powers of two up to 4,096.",
    )
    define_string(
        "within", None, "The time of the training to find the nodes for, such as 1h."
    )
    define_integer(
        "compare_on",
        None,
        "The number of nodes on which compression methods are compared; unset, the"
        " answer to --within, or the knee.",
    )
    define_integer(
        "num_classes",
        0,
        "The number of classes; 0 for 10 with CIFAR-10's networks and 1,000 with"
        " others.",
        lower_bound=0,
    )
    define_string("plot", None, "The file for a figure, such as estimate.png.")
    flags.DEFINE_bool(
        "json",
        False,
        "Print the estimate as JSON too, in the last line.",
        flag_values=flag_values,
    )
    _define_flags_of_cluster(flag_values)
    for kind, names in _OF_CLASSES.items():
        setting_flags.define(kind, names, flag_values=flag_values)


def _define_flags_of_cluster(flag_values: flags.FlagValues) -> None:
    define_float = functools.partial(flags.DEFINE_float, flag_values=flag_values)
    define_float(
        "bandwidth_gbit",
        100.0,
        "The bandwidth of a node in each direction, in Gbit/s, full duplex.",
    )
    define_float(
        "latency_us", 2.0, "The latency of a message between nodes, in microseconds."
    )
    define_float(
        "overlap",
        1.0,
        "The fraction of the backward pass that overlaps with the exchange: 1 with"
        " cores left for communication, 0 where all cores compute.",
    )
    define_float(
        "step_noise",
        None,
        "The standard deviation of a node's step as a fraction of it; unset, that of"
        " the benchmark, or 0.02.",
    )
    define_float(
        "shared_disk_gbit",
        None,
        "The read bandwidth of a disk that all nodes share, in Gbit/s; unset, each node"
        " has the records on a disk of its own.",
    )
    define_float(
        "image_kilobytes",
        110.0,
        "The size of an image's record in kB, with --shared_disk_gbit.",
    )
    flags.DEFINE_enum(
        "allreduce",
        "auto",
        collectives.ALLREDUCES,
        "The algorithm that sums gradients; auto takes the fastest one for the"
        " message.",
        flag_values=flag_values,
    )


def main() -> None:
    """Estimates as the flags say, and prints."""
    check_flags()
    config = read_config()
    cluster, rate_image_size = read_cluster(config)
    training = workload.of_config(
        config, FLAGS.num_classes, rate_image_size, 1e3 * FLAGS.image_kilobytes
    )
    numbers = shown_numbers(training, cluster)
    kind = FLAGS.allreduce
    shown = [predict(training, cluster, number, kind) for number in numbers]
    predictions = answers.all_predictions(training, cluster, kind)
    knee = answers.knee(predictions)
    seconds = durations.parse(FLAGS.within, "--within") if FLAGS.within else 0.0
    within = answers.within(predictions, seconds)
    compared_on = FLAGS.compare_on or (within or knee).num_nodes
    texts = [
        table.describe(training, cluster, config.recipe, config.model),
        table.of_nodes(shown),
        table.of_answers(within, FLAGS.within, knee, predictions),
    ]
    values: dict[str, Any] = {
        "recipe": config.recipe,
        "cluster": {
            name: value if math.isfinite(value) else None
            for name, value in dataclasses.asdict(cluster).items()
        },
        "nodes": [one.as_dict() for one in shown],
        "knee": knee.as_dict(),
        "within": within.as_dict() if within else None,
    }
    if compared_on > 1:
        text, values["exchanges"] = compare(training, cluster, compared_on)
        texts.append(text)
    if FLAGS.plot:
        drawn = figure.estimate(
            {one.num_nodes: one.hours for one in predictions},
            knee.num_nodes,
            seconds / 3600,
            {
                one.num_nodes: {
                    part: getattr(one, part) / one.step_seconds
                    for part in figure.STEP_PARTS
                }
                for one in shown
            },
            f"{config.recipe}, {cluster.images_per_second:.4g} images/s a node",
        )
        figure.write(drawn, pathlib.Path(FLAGS.plot), "--plot")
    errors.print_to_pipe("\n\n".join(texts))
    if FLAGS.json:
        errors.print_to_pipe(json.dumps(values))


def compare(
    training: Workload, cluster: Cluster, num_nodes: int
) -> tuple[str, dict[str, Any]]:
    """Returns how ways to exchange gradients compare, as a table and for JSON."""
    ways = answers.alternatives(training)
    ask = functools.partial(answers.break_even, ways[answers.NOT_COMPRESSED])
    break_evens = {
        name: ask(way, cluster, num_nodes, FLAGS.allreduce)
        for name, way in ways.items()
        if name != answers.NOT_COMPRESSED
    }
    found = {
        name: predict(way, cluster, num_nodes, FLAGS.allreduce)
        for name, way in ways.items()
    }
    values: dict[str, dict[str, Any]] = {
        name: {**one.as_dict()} for name, one in found.items()
    }
    for name, bandwidth in break_evens.items():
        at_any = bandwidth == math.inf
        values[name]["pays_at_any_bandwidth"] = at_any
        values[name]["pays_below_bytes_per_second"] = None if at_any else bandwidth
    return table.of_alternatives(found, break_evens), values


def shown_numbers(training: Workload, cluster: Cluster) -> list[int]:
    """Returns the numbers of nodes in the table, having checked those of flags.

    Raises:
        UserError: If a number is none, or doesn't divide the batch.
    """
    batch, ranks = training.global_batch_size, cluster.ranks_per_node
    try:
        numbers = sorted({int(text) for text in FLAGS.nodes or []})
    except ValueError as error:
        raise UserError(
            "--nodes must be whole numbers separated by commas; got"
            f" {','.join(FLAGS.nodes)!r}."
        ) from error
    compared = [] if FLAGS.compare_on is None else [FLAGS.compare_on]
    node_counts.check(numbers, batch, ranks, "--nodes")
    node_counts.check(compared, batch, ranks, "--compare_on")
    return numbers or node_counts.shown(node_counts.dividing(batch, ranks))


def read_config() -> Config:
    """Returns the settings of the run, with the recipe's number of images.

    Raises:
        UserError: If there is no such recipe, or settings are wrong.
    """
    recipe = recipe_file.get(FLAGS.recipe)
    declared = settings.declarations(*OVERRIDABLE)
    overrides = {
        name: FLAGS[settings.flag_name(name, declared[name])].value
        for names in _OF_CLASSES.values()
        for name in names
    }
    return resolve(recipe, overrides, recipe.num_train_examples, ("of the data",))


def read_cluster(config: Config) -> tuple[Cluster, int]:
    """Returns the cluster, and the side of the images that its rate is for.

    Args:
        config: The settings of the run.
    """
    rate, fixed, ranks, noise = FLAGS.rate, 0.0, 1, None
    image_size = config.image_size
    if FLAGS.benchmark:
        speed = benchmark_file.read(FLAGS.benchmark, config.model)
        rate, fixed = speed.images_per_second, speed.fixed_seconds
        ranks, noise, image_size = speed.ranks, speed.step_noise, speed.image_size
    disk = FLAGS.shared_disk_gbit
    if FLAGS.step_noise is not None:
        noise = FLAGS.step_noise
    return Cluster(
        images_per_second=rate,
        fixed_seconds=fixed,
        ranks_per_node=FLAGS.ranks_per_node or ranks,
        latency=1e-6 * FLAGS.latency_us,
        bandwidth=_GIGABIT * FLAGS.bandwidth_gbit,
        overlap=FLAGS.overlap,
        step_noise=Cluster.step_noise if noise is None else noise,
        shared_disk=math.inf if disk is None else _GIGABIT * disk,
    ), image_size


def check_flags() -> None:
    """Refuses flags that are missing or out of their ranges.

    Raises:
        UserError: With a sentence for the first one.
    """
    if bool(FLAGS.benchmark) == (FLAGS.rate is not None):
        got = "both" if FLAGS.benchmark else "neither"
        raise UserError(
            "the speed of a node is needed, by --rate or by --benchmark; got"
            f" {got}. Measure it by eval/benchmark.py --json on one node."
        )
    for name, unit in (
        ("rate", "images per second"),
        ("bandwidth_gbit", "Gbit/s"),
        ("shared_disk_gbit", "Gbit/s"),
        ("image_kilobytes", "kB"),
    ):
        value = FLAGS[name].value
        # With others, times and rates may be more than a float can hold.
        if value is not None and not 1e-9 <= value <= 1e12:
            raise UserError(
                f"--{name} must be from 1e-9 to 1e12 {unit}; got {value:g}."
            )
    for name, highest in (("latency_us", 1e9), ("overlap", 1.0), ("step_noise", 1.0)):
        value = FLAGS[name].value
        if value is not None and not 0 <= value <= highest:
            raise UserError(f"--{name} must be from 0 to {highest:g}; got {value:g}.")
    if FLAGS.ranks_per_node is not None and FLAGS.ranks_per_node < 1:
        raise UserError(
            f"--ranks_per_node must be at least 1; got {FLAGS.ranks_per_node}."
        )


def run() -> None:
    """Runs the program."""
    define_flags(FLAGS)
    errors.run(main, flag_topics.ESTIMATE)


if __name__ == "__main__":
    run()
