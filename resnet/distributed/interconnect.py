"""Measures the interconnect of the ranks."""

import statistics
import time
from typing import NamedTuple

import numpy as np

from resnet.distributed.communicator import Communicator

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

    def seconds(self, num_messages: float, num_bytes: float) -> float:
        """Returns the time of messages that a rank sends one after the other.

        Args:
            num_messages: Their number.
            num_bytes: Bytes of all of them together.
        """
        return num_messages * self.latency + num_bytes / self.bandwidth


def measure(communicator: Communicator) -> Interconnect:
    """Returns the network of two or more ranks, as the slowest rank sees it.

    Every rank sends short messages, then long ones, to all others. To be called on all
    ranks; all get the same result. A rank sends some 25 MB, which takes 0.2 s at 1
    Gbit/s, and from 1,024 ranks on more: 100 MB with 4,096.

    Args:
        communicator: The ranks.
    """
    others = communicator.num_ranks - 1
    large = max(_LARGE_BYTES // others, _LEAST_LARGE_BYTES)
    short, long = (_seconds(communicator, size) for size in (_SMALL_BYTES, large))
    latency = short / others
    return Interconnect(latency, large / max((long - short) / others, 1e-9))


def _seconds(communicator: Communicator, num_bytes: int) -> float:
    """Returns the median time of a message of that length to each rank, in seconds."""
    parts = np.zeros([communicator.num_ranks, num_bytes], np.uint8)
    times = []
    for number in range(1 + _REPEATS):
        communicator.allgather(number)  # All begin together.
        begin = time.perf_counter()
        communicator.alltoall(parts)
        times.append(max(communicator.allgather(time.perf_counter() - begin)))
    return statistics.median(times[1:])  # The first one makes the connections.
