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

    def seconds(self, message_bytes: int, num_ranks: int) -> dict[str, float]:
        """Returns the time of either exchange of R ranks' messages.

        An all-gather is R - 1 messages, and one in slices twice as many.
        """
        sent = {
            "allgather": plan.sent_by_allgather(message_bytes, num_ranks),
            "sliced": plan.sent_by_allreduce(message_bytes, num_ranks),
        }
        return {
            name: count * (num_ranks - 1) * self.latency + sent[name] / self.bandwidth
            for name, count in (("allgather", 1), ("sliced", 2))
        }


def choose(settings: CompressionSettings, communicator: Communicator) -> str:
    """Returns the exchange of a run, the same on all ranks.

    "auto" becomes "allgather" or "sliced", by a measurement of the network; up to two
    ranks send as many bytes both ways. Without messages it stays "auto".
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
    # Of a warm-up the messages of the first epoch, the longest: with dgc that keeps 1 %
    # after four epochs, these send three quarters of all bytes of 24 epochs.
    is_assumed = METHODS[settings.method].size == "assumed"
    bytes_of = num_bytes if is_assumed else most_bytes
    seconds = network.seconds(bytes_of(settings, [BUCKET_VALUES]), num_ranks)
    chosen = min(seconds, key=lambda name: seconds[name])
    if communicator.rank == 0:
        logging.info(
            f"exchange {chosen}: for the messages of {BUCKET_VALUES} values an"
            f" all-gather is predicted to take {1e3 * seconds['allgather']:.3g} ms and"
            f" slices {1e3 * seconds['sliced']:.3g} ms, with a latency of"
            f" {1e6 * network.latency:.3g} us and {8e-9 * network.bandwidth:.3g} Gbit/s"
            " a rank"
        )
    return chosen


def measure(communicator: Communicator) -> Interconnect:
    """Returns the network of two or more ranks, as the slowest rank sees it.

    To be called on all ranks; all get the same result. Each sends short messages, then
    long ones, to all others: some 25 MB, and from 1,024 ranks on more, 100 MB of 4,096.
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
