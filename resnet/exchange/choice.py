"""Chooses how compressed gradients reach all ranks, by a measurement of the network."""

import statistics
import time
from typing import NamedTuple

import numpy as np
from absl import logging

from resnet.config.compression import (
    BUCKET_VALUES,
    METHODS,
    CompressionSettings,
    most_bytes,
    num_bytes,
)
from resnet.distributed.communicator import Communicator
from resnet.exchange import plan

_SMALL_BYTES = 8
_LARGE_BYTES = 4 << 20  # What a rank sends to all others together.
_LEAST_LARGE_BYTES = 4 << 10  # The least that a rank sends to each other one.
_REPEATS = 5


class Interconnect(NamedTuple):
    """What messages cost while all ranks send at the same time.

    Attributes:
        latency: Seconds that each message takes, however short.
        bandwidth: Bytes a second that a rank sends.
    """

    latency: float
    bandwidth: float

    def seconds_of_allgather(self, message_bytes: int, num_ranks: int) -> float:
        """Returns the time of an all-gather of R ranks' messages, R - 1 messages."""
        sent = plan.sent_by_allgather(message_bytes, num_ranks)
        return (num_ranks - 1) * self.latency + sent / self.bandwidth

    def seconds_of_slices(self, message_bytes: int, num_ranks: int) -> float:
        """Returns the time of an exchange in slices, 2 (R - 1) messages."""
        sent = plan.sent_by_slices(message_bytes, num_ranks)
        return 2 * (num_ranks - 1) * self.latency + sent / self.bandwidth


def choose(settings: CompressionSettings, communicator: Communicator) -> str:
    """Returns the exchange of a run, the same on all ranks.

    "auto" becomes "allgather" or "sliced", by a measurement of the network. It stays
    "auto" where no messages are exchanged. On two ranks, which send as many bytes both
    ways, and on one it becomes "allgather".
    """
    has_messages = (
        settings.compress != "none" and not METHODS[settings.method].is_summed
    )
    if settings.exchange != "auto" or not has_messages:
        return settings.exchange
    num_ranks = communicator.num_ranks
    if num_ranks <= 2:
        return "allgather"
    network = measure(communicator)
    message_bytes = bytes_of_bucket(settings)
    seconds = {
        "allgather": network.seconds_of_allgather(message_bytes, num_ranks),
        "sliced": network.seconds_of_slices(message_bytes, num_ranks),
    }
    chosen = min(seconds, key=lambda name: seconds[name])
    if communicator.rank == 0:
        logging.info(
            "exchange %s: for the messages of %d values an all-gather is predicted to"
            " take %.3g ms and slices %.3g ms, with a latency of %.3g us and %.3g"
            " Gbit/s a rank",
            chosen,
            BUCKET_VALUES,
            1e3 * seconds["allgather"],
            1e3 * seconds["sliced"],
            1e6 * network.latency,
            8e-9 * network.bandwidth,
        )
    return chosen


def bytes_of_bucket(settings: CompressionSettings) -> int:
    """Returns the bytes of a rank's messages that travel together.

    Those of a warm-up are its first epoch's, the longest: of a run of 24 epochs with
    dgc that keeps 1 % after four epochs of warm-up, these send three quarters of all
    bytes.
    """
    is_assumed = METHODS[settings.method].size == "assumed"
    return (num_bytes if is_assumed else most_bytes)(settings, [BUCKET_VALUES])


def measure(communicator: Communicator) -> Interconnect:
    """Returns the network of two or more ranks, as the slowest rank sees it.

    Every rank sends short messages, then long ones, to all others. To be called on all
    ranks; all get the same result. A rank sends some 25 MB, which takes 0.2 s at 1
    Gbit/s, and from 1,024 ranks on more: 100 MB with 4,096.
    """
    others = communicator.num_ranks - 1
    large = max(_LARGE_BYTES // others, _LEAST_LARGE_BYTES)
    short, long = (_seconds(communicator, size) for size in (_SMALL_BYTES, large))
    latency = short / others
    return Interconnect(latency, large / max((long - short) / others, 1e-9))


def _seconds(communicator: Communicator, message_bytes: int) -> float:
    """Returns the median time of a message of that length to each rank, in seconds."""
    parts = np.zeros([communicator.num_ranks, message_bytes], np.uint8)
    times = []
    for number in range(1 + _REPEATS):
        communicator.allgather(number)  # All begin together.
        begin = time.perf_counter()
        communicator.alltoall(parts)
        times.append(max(communicator.allgather(time.perf_counter() - begin)))
    return statistics.median(times[1:])  # The first one makes the connections.
