"""Predicts what a training takes on so many nodes, by formulas (docs/estimating.md).

A message of n bytes takes latency + n / bandwidth, and a sum of n bytes takes n / sum
rate: alpha + n beta and n gamma in the source. Ranks are numbered node by node, and
what they exchange within a node counts as part of its rate, so that only stages between
nodes are counted. A node's ranks share its bandwidth.

Source, whose sections are named below: Thakur, Rabenseifner and Gropp 2005,
"Optimization of collective communication operations in MPICH", Int. J. High Perform.
Comput. Appl. 19(1), pages 49 to 66.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

from resnet.base.errors import UserError
from resnet.config import networks, rounds
from resnet.config.compression import (
    BUCKET_VALUES,
    METHODS,
    CompressionSettings,
    num_bytes,
)
from resnet.config.config import Config

MOST_NODES = 4096
ALLREDUCES = ("auto", "recursive_doubling", "rabenseifner", "ring")
NOT_COMPRESSED = "not compressed"
# Bytes that a core adds to other bytes of float32 per second: the median of 9 sums of
# 25,557,032 values by NumPy, on one core of an AMD EPYC (Zen 5).
SUM_BYTES_PER_SECOND = 8.1e9
# MPICH gathers in a logarithmic number of stages below these bytes, else in a ring
# (MPIR_CVAR_ALLGATHER_LONG_MSG_SIZE).
_SHORT_ALLGATHER_BYTES = 512 << 10
_FLAG_BYTES = 12  # The loss and the two flags that all ranks share in each step.
# Of three products of matrices in a layer, the backward pass computes two: the
# gradients of the kernel and those of the inputs (`eval.benchmarking.throughput`).
_BACKWARD_SHARE = 2 / 3
# What is compared with gradients that aren't compressed: the measured codecs.
_COMPRESSIONS: dict[str, dict[str, Any]] = {
    "topk, 1 %": {"method": "topk", "ratio": 0.01},
    "qsgd, 4 bits": {"method": "qsgd", "qstates": 7, "qsgd_bucket": 1024},
    "terngrad": {"method": "terngrad"},
}
# Bytes per second between which a break-even is looked for: 1 Mbit/s to 10 Tbit/s.
_SLOWEST, _FASTEST = 1e6 / 8, 1e13 / 8


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal nodes, as they are in training."""

    images_per_second: float  # Of a node by itself, without `fixed_seconds`.
    fixed_seconds: float = 0.0  # Of a node's step, whatever the number of its images.
    ranks_per_node: int = 1
    latency: float = 2e-6  # Seconds of a message between nodes, however short.
    bandwidth: float = 12.5e9  # Bytes per second that a node sends, and receives.
    overlap: float = 1.0  # Fraction of the backward pass in which exchanges progress.
    step_noise: float = 0.02  # Standard deviation of a node's step, as a fraction.
    shared_disk: float = math.inf  # Bytes per second that all nodes read together.


@dataclass(frozen=True)
class Workload:
    """A training, as far as its duration depends on it."""

    global_batch_size: int
    num_steps: int
    num_values: int  # Trained values, whose gradients are exchanged.
    num_exchanges: int  # Steps in which the ranks exchange gradients.
    num_averages: int = 0  # Averages of weights or velocities, by local SGD.
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    relative_pixels: float = 1.0  # Of an image, over those that the rate is for.
    image_bytes: float = 0.0  # Of an image's record in the data set.

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients, float32."""
        return 4 * self.num_values


def workload_of(
    config: Config, num_classes: int, rate_image_size: int, image_bytes: float
) -> Workload:
    """Returns the workload of a run, refusing one that can't be estimated.

    Of 0 classes, there are those of the settings; the nodes' rate is for images of
    `rate_image_size` pixels a side.
    """
    if config.is_async:
        raise UserError(
            f"expected a recipe of synchronous training; {config.recipe} has parameter"
            " servers (sync_mode=async)."
        )
    if config.compress != "none" and METHODS[config.method].needs_matrices:
        raise UserError(
            f"--method={config.method} is not estimated. The bytes of its messages are"
            " in what resnet_main.py --explain --num_ranks=N prints."
        )
    classes = num_classes or config.num_classes
    num_exchanges = num_averages = 0
    for index, phase in enumerate(config.phases):
        if phase.is_local:
            num_rounds = len(list(rounds.bounds_of_phase(config.phases, index))) - 1
            num_averages += num_rounds * (1 + (phase.local_velocities == "average"))
        else:
            num_exchanges += phase.num_steps
    pixels = sum(phase.num_steps * phase.image_size**2 for phase in config.phases)
    return Workload(
        global_batch_size=config.global_batch_size,
        num_steps=config.train_steps,
        num_values=networks.num_parameters(config.model, classes, config.se_ratio),
        num_exchanges=num_exchanges,
        num_averages=num_averages,
        compression=config,
        relative_pixels=pixels / config.train_steps / rate_image_size**2,
        image_bytes=image_bytes,
    )


class Stages(NamedTuple):
    """What a node does one after the other in a collective operation."""

    num_messages: float
    sent_bytes: float  # And as many that it receives.
    summed_bytes: float = 0.0  # That one of its ranks adds to others.

    def seconds(self, cluster: Cluster) -> float:
        """Returns the seconds that they take."""
        return (
            self.num_messages * cluster.latency
            + self.sent_bytes / cluster.bandwidth
            + self.summed_bytes / SUM_BYTES_PER_SECOND
        )


def recursive_doubling(size: float, num_nodes: int, ranks_per_node: int = 1) -> Stages:
    """Returns an all-reduce by lg N stages of the whole tensor (section 4.5)."""
    num_stages = math.floor(math.log2(num_nodes))
    num_stages += 2 * _extra(num_nodes, ranks_per_node)
    return Stages(num_stages, num_stages * size * ranks_per_node, num_stages * size)


def rabenseifner(size: float, num_nodes: int, ranks_per_node: int = 1) -> Stages:
    """Returns an all-reduce by reduce-scatter and all-gather, 2 lg N (section 4.5).

    A node's ranks halve the tensor among themselves first, so that together they send
    no more than one rank would, 2 (N - 1) / N times the tensor.
    """
    num_stages = math.floor(math.log2(num_nodes))
    in_tree = 1 << num_stages
    extra = _extra(num_nodes, ranks_per_node)
    times = (in_tree - 1) / in_tree + extra
    return Stages(2 * (num_stages + extra), 2 * times * size, times * size)


def _extra(num_nodes: int, ranks_per_node: int) -> int:
    """Returns 1 if the tensor travels once more before all stages, and after them.

    For numbers that aren't powers of two, pairs of neighboring ranks become one, if
    possible within a node (MPICH, allreduce_intra_recursive_doubling.c).
    """
    is_power = num_nodes & (num_nodes - 1) == 0
    return 0 if is_power else ranks_per_node % 2


def ring(size: float, num_ranks: int) -> Stages:
    """Returns an all-reduce by 2 (R - 1) messages of n / R bytes to the next rank.

    Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, section 3.
    """
    share = (num_ranks - 1) / num_ranks
    return Stages(2 * (num_ranks - 1), 2 * share * size, share * size)


def allreduce(size: float, num_nodes: int, cluster: Cluster, kind: str) -> Stages:
    """Returns an all-reduce by one of `ALLREDUCES`; "auto" takes the least time."""
    per_node = cluster.ranks_per_node
    kinds = {
        "recursive_doubling": recursive_doubling(size, num_nodes, per_node),
        "rabenseifner": rabenseifner(size, num_nodes, per_node),
        "ring": ring(size, num_nodes * per_node),
    }
    if kind != "auto":
        return kinds[kind]
    return min(kinds.values(), key=lambda stages: stages.seconds(cluster))


def allgather(size: float, num_ranks: int) -> Stages:
    """Returns an all-gather of each rank's message, of which a node sends R - 1.

    Short messages take lg R stages, others R - 1 in a ring (section 4.1).
    """
    is_short = num_ranks * size < _SHORT_ALLGATHER_BYTES
    num_messages = math.ceil(math.log2(num_ranks)) if is_short else num_ranks - 1
    return Stages(num_messages, (num_ranks - 1) * size)


def slices(size: float, num_ranks: int, ranks_per_node: int) -> Stages:
    """Returns an exchange in which each rank sums up one slice of all messages.

    An all-to-all of R - 1 slices of a rank's message, then an all-gather of the mean
    slices (sections 4.1 and 4.4).
    """
    to_others = (num_ranks - ranks_per_node) / num_ranks * ranks_per_node
    gathered = allgather(size / num_ranks, num_ranks)
    num_messages = num_ranks - 1 + gathered.num_messages
    return Stages(num_messages, to_others * size + gathered.sent_bytes)


class Exchange(NamedTuple):
    """One exchange of the gradients of the whole network."""

    network_seconds: float  # Without any overlap.
    codec_seconds: float
    num_buckets: int  # Messages that follow each other.
    sent_bytes: float  # By a node.

    def exposed_seconds(self, backward_seconds: float, overlap: float) -> float:
        """Returns the seconds by which the exchange makes a step longer.

        The last bucket of k is only sent after the backward pass, and the others during
        a fraction of it, the overlap. Encoding takes the cores of the computation.
        Source: Agarwal et al. 2021, arXiv:2103.00543, the performance model:
        max(T_backward, (k - 1) T_bucket) + T_last.
        """
        last = self.network_seconds / self.num_buckets
        before = self.network_seconds - last
        late = max(0.0, before - overlap * backward_seconds)
        return self.codec_seconds + late + last


def exchange_of_gradients(
    workload: Workload, cluster: Cluster, num_nodes: int, kind: str = "auto"
) -> Exchange:
    """Returns the exchange of the gradients in a step.

    All values are taken as one vector: left out are the headers of each variable's
    message (0.1 % of those of topk with a ratio of 1 %), and that `dense_below` leaves
    short ones whole (0.15 MB of ResNet-50's 102 MB). Of methods with a threshold, 1 %
    is taken to be sent.

    A rank encodes and decodes on one core, in no time where this hasn't been measured:
    with "allgather" it decodes R messages; with "sliced" R slices of one message, then
    the means of R slices, of which it encodes one.
    """
    compression, method = workload.compression, METHODS[workload.compression.method]
    num_buckets = math.ceil(workload.num_values / BUCKET_VALUES)
    if compression.compress == "entiremodel":
        num_buckets = 1
    sent = workload.gradient_bytes
    if compression.compress != "none":
        sent = num_bytes(compression, [workload.num_values])
    codec_seconds = 0.0
    if compression.compress == "none" or method.is_summed:
        stages = allreduce(sent / num_buckets, num_nodes, cluster, kind)
    else:
        num_ranks = num_nodes * cluster.ranks_per_node
        ways = {
            "allgather": allgather(sent / num_buckets, num_ranks),
            "sliced": slices(sent / num_buckets, num_ranks, cluster.ranks_per_node),
        }
        way = compression.exchange
        if way == "auto":  # The run, too, compares the network's seconds only.
            way = "allgather"
            if num_ranks > 2:
                way = min(ways, key=lambda name: ways[name].seconds(cluster))
        stages = ways[way]
        encoded, decoded = 1.0, float(num_ranks)
        if way == "sliced":
            encoded, decoded = 1 + 1 / num_ranks, 2.0
        encode, decode = method.value_seconds
        codec_seconds = workload.num_values * (encoded * encode + decoded * decode)
    return Exchange(
        num_buckets * stages.seconds(cluster),
        codec_seconds,
        num_buckets,
        num_buckets * stages.sent_bytes,
    )


@dataclass(frozen=True)
class Prediction:
    """What a training takes on some nodes; times are seconds, means over its steps."""

    num_nodes: int
    num_ranks: int
    global_batch_size: int
    num_steps: int
    compute: float  # Of a node.
    exchange: float  # By which the exchange between nodes makes a step longer.
    stragglers: float  # Waiting for the slowest node.
    input: float  # Waiting for images from a shared disk.
    sent_bytes: float  # By a node in a step.
    one_node_seconds: float  # Of the same step on one node.
    # What follows from these.
    step_seconds: float = field(init=False)
    images_per_second: float = field(init=False)  # Of all nodes.
    efficiency: float = field(init=False)  # Images/s of a node, over one node's.
    hours: float = field(init=False)  # Without evaluations and checkpoints.
    node_hours: float = field(init=False)  # Of all nodes together.

    def __post_init__(self) -> None:
        seconds = self.compute + self.exchange + self.stragglers + self.input
        hours = self.num_steps * seconds / 3600
        following = {
            "step_seconds": seconds,
            "images_per_second": self.global_batch_size / seconds,
            "efficiency": self.one_node_seconds / (self.num_nodes * seconds),
            "hours": hours,
            "node_hours": self.num_nodes * hours,
        }
        for name, value in following.items():
            object.__setattr__(self, name, value)


def predict(
    workload: Workload, cluster: Cluster, num_nodes: int, kind: str = "auto"
) -> Prediction:
    """Returns the prediction for a number of nodes, whose ranks divide the batch.

    The nodes' steps are taken as independent and normally distributed, so that a step
    lasts as long as the largest of them; reading from a shared disk goes on at the same
    time, and takes time only as far as it takes longer than all else. An average of the
    weights after a round of local SGD has as many bytes as gradients, and overlaps with
    nothing; the averages of batch normalization's statistics, 0.2 % of ResNet-50's, are
    left out.
    """
    images = workload.relative_pixels * workload.global_batch_size
    compute, alone = (
        cluster.fixed_seconds + images / nodes / cluster.images_per_second
        for nodes in (num_nodes, 1)
    )
    exchange = sent = 0.0
    if num_nodes > 1:
        gradients = exchange_of_gradients(workload, cluster, num_nodes, kind)
        weights = allreduce(workload.gradient_bytes, num_nodes, cluster, kind)
        seconds, of_weights = weights.seconds(cluster), weights.sent_bytes
        if workload.compression.compress != "none":
            seconds, of_weights = gradients.exposed_seconds(0, 0), gradients.sent_bytes
        flags = recursive_doubling(_FLAG_BYTES, num_nodes, cluster.ranks_per_node)
        num_local = workload.num_steps - workload.num_exchanges
        exposed = gradients.exposed_seconds(_BACKWARD_SHARE * compute, cluster.overlap)
        exchange = (
            workload.num_exchanges * exposed
            + workload.num_averages * seconds
            + num_local * flags.seconds(cluster)
        ) / workload.num_steps
        sent = (
            workload.num_exchanges * gradients.sent_bytes
            + workload.num_averages * of_weights
        ) / workload.num_steps
    waiting = cluster.step_noise * compute * expected_maximum(num_nodes)
    reading = workload.global_batch_size * workload.image_bytes / cluster.shared_disk
    return Prediction(
        num_nodes=num_nodes,
        num_ranks=num_nodes * cluster.ranks_per_node,
        global_batch_size=workload.global_batch_size,
        num_steps=workload.num_steps,
        compute=compute,
        exchange=exchange,
        stragglers=waiting,
        input=max(0.0, reading - compute - exchange - waiting),
        sent_bytes=sent,
        one_node_seconds=alone + max(0.0, reading - alone),
    )


@functools.cache
def expected_maximum(number: int) -> float:
    """Returns the mean of the largest of N standard normally distributed numbers.

    It is the integral of 1 - F(x)^N over x > 0 minus that of F(x)^N over x < 0, by the
    trapezoid rule, where F is the normal distribution function. Source: David and
    Nagaraja 2003, "Order Statistics", 3rd edition, section 3.1, by partial integration.
    """
    if number == 1:
        return 0.0  # Without the integral's rounding.
    cdf = NormalDist().cdf
    limit, num_intervals = 9.0, 2000  # Standard deviations; nothing is beyond.
    width = limit / num_intervals
    total = 0.0
    for index in range(num_intervals + 1):
        x = index * width
        value = 1 - cdf(x) ** number - cdf(-x) ** number
        total += value / 2 if index in (0, num_intervals) else value
    return total * width


def dividing(global_batch_size: int, ranks_per_node: int) -> list[int]:
    """Returns all numbers of nodes up to `MOST_NODES` that divide a batch."""
    numbers = range(1, MOST_NODES + 1)
    return [n for n in numbers if global_batch_size % (n * ranks_per_node) == 0]


def about_powers_of_two(numbers: Sequence[int]) -> list[int]:
    """Returns about one number for each power of two, among numbers that rise."""
    powers = (1 << bits for bits in range(MOST_NODES.bit_length()))
    largest = ([n for n in numbers if n <= power][-1:] for power in powers)
    return sorted({number for last in largest for number in last})


def within(predictions: Sequence[Prediction], seconds: float) -> Prediction | None:
    """Returns the first prediction of a training in so many seconds, or None."""
    fast = (of for of in predictions if of.num_steps * of.step_seconds <= seconds)
    return next(fast, None)


def knee(predictions: Sequence[Prediction]) -> Prediction:
    """Returns the number of nodes beyond which more of them gain less than they cost.

    It has the largest efficiency / time: beyond it the efficiency falls faster than the
    time does. Source: Eager, Zahorjan and Lazowska 1989, "Speedup versus efficiency in
    parallel systems", IEEE Trans. Computers 38(3).
    """
    return max(predictions, key=lambda of: of.efficiency / of.step_seconds)


def alternatives(workload: Workload) -> dict[str, Workload]:
    """Returns the training, first dense, with ways to exchange gradients, by names."""
    dense = dataclasses.replace(
        workload,
        compression=CompressionSettings(),
        num_exchanges=workload.num_steps,
        num_averages=0,
    )
    ways = {NOT_COMPRESSED: dense}
    for name, values in _COMPRESSIONS.items():
        settings = CompressionSettings(compress="layerwise", **values)
        ways[name] = dataclasses.replace(dense, compression=settings)
    for length in (2, 8):
        ways[f"local SGD, H = {length}"] = dataclasses.replace(
            dense, num_exchanges=0, num_averages=math.ceil(workload.num_steps / length)
        )
    return ways


def break_even(
    dense: Workload,
    other: Workload,
    cluster: Cluster,
    num_nodes: int,
    kind: str = "auto",
) -> float | None:
    """Returns the bandwidth below which another exchange takes less time, by bisection.

    It is in bytes per second of a node; infinity if the exchange always takes less, and
    None if it never does.
    """

    def saves_at(bandwidth: float) -> bool:
        at = dataclasses.replace(cluster, bandwidth=bandwidth)
        without, with_it = (
            predict(workload, at, num_nodes, kind).step_seconds
            for workload in (dense, other)
        )
        return with_it < without

    if saves_at(_FASTEST):
        return math.inf
    if not saves_at(_SLOWEST):
        return None
    low, high = _SLOWEST, _FASTEST
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if saves_at(middle) else (low, middle)
    return low
