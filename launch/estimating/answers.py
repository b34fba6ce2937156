"""Answers that need predictions for several numbers of nodes, or several settings."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from launch.estimating import node_counts
from launch.estimating.cluster import Cluster
from launch.estimating.prediction import Prediction, predict
from launch.estimating.workload import Workload
from resnet.config.compression import CompressionSettings

# Bytes per second between which a break-even is looked for: 1 Mbit/s to 10 Tbit/s.
_SLOWEST, _FASTEST = 1e6 / 8, 1e13 / 8
_HALVINGS = 40

NOT_COMPRESSED = "not compressed"
# What is compared with gradients that aren't compressed: the measured codecs.
_COMPRESSIONS: dict[str, dict[str, Any]] = {
    "topk, 1 %": {"method": "topk", "ratio": 0.01},
    "qsgd, 4 bits": {"method": "qsgd", "qstates": 7, "qsgd_bucket": 1024},
    "terngrad": {"method": "terngrad"},
}
_LOCAL_STEPS = (2, 8)


def all_predictions(
    workload: Workload, cluster: Cluster, allreduce: str = "auto"
) -> list[Prediction]:
    """Returns the predictions for all numbers of nodes that divide the batch."""
    numbers = node_counts.dividing(workload.global_batch_size, cluster.ranks_per_node)
    return [predict(workload, cluster, number, allreduce) for number in numbers]


def within(predictions: Sequence[Prediction], seconds: float) -> Prediction | None:
    """Returns the fewest nodes that train in a time, or None.

    Args:
        predictions: The predictions, by rising numbers of nodes.
        seconds: The time of all steps.
    """
    for one in predictions:
        if one.num_steps * one.step_seconds <= seconds:
            return one
    return None


def knee(predictions: Sequence[Prediction]) -> Prediction:
    """Returns the number of nodes beyond which more of them gain less than they cost.

    It has the largest efficiency / time: beyond it the efficiency falls faster than the
    time does.

    Source: Eager, Zahorjan and Lazowska 1989, "Speedup versus efficiency in parallel
    systems", IEEE Trans. Computers 38(3), the knee of the execution time-efficiency
    profile.
    """
    return max(predictions, key=lambda one: one.efficiency / one.step_seconds)


def alternatives(workload: Workload) -> dict[str, Workload]:
    """Returns the training with other ways to exchange gradients, by their names.

    The first one is not compressed and exchanges gradients in each step.
    """
    dense = dataclasses.replace(
        workload,
        compression=CompressionSettings(),
        num_exchanges=workload.num_steps,
        num_averages=0,
    )
    found = {NOT_COMPRESSED: dense}
    for name, given in _COMPRESSIONS.items():
        settings = CompressionSettings(compress="layerwise", **given)
        found[name] = dataclasses.replace(dense, compression=settings)
    for length in _LOCAL_STEPS:
        found[f"local SGD, H = {length}"] = dataclasses.replace(
            dense, num_exchanges=0, num_averages=math.ceil(workload.num_steps / length)
        )
    return found


def break_even(
    dense: Workload,
    other: Workload,
    cluster: Cluster,
    num_nodes: int,
    allreduce: str = "auto",
) -> float | None:
    """Returns the bandwidth below which another exchange takes less time.

    Found by bisection, since the time that fewer bytes save falls with the bandwidth.

    Args:
        dense: The training whose gradients aren't compressed.
        other: The same with another exchange.
        cluster: The cluster, whose bandwidth makes no difference here.
        num_nodes: The number of nodes.
        allreduce: The kind of all-reduce.

    Returns:
        Bytes per second of a node; infinity if it takes less at any bandwidth, and None
        if it takes more at any.
    """

    def saves_at(bandwidth: float) -> bool:
        at = dataclasses.replace(cluster, bandwidth=bandwidth)
        one, another = (predict(w, at, num_nodes, allreduce) for w in (dense, other))
        return another.step_seconds < one.step_seconds

    if saves_at(_FASTEST):
        return math.inf
    if not saves_at(_SLOWEST):
        return None
    low, high = _SLOWEST, _FASTEST
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if saves_at(middle) else (low, middle)
    return low
