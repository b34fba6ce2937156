"""Measures the connections between hosts, several of them at the same time."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from resnet.distributed.communicator import Communicator

LONG_BYTES = 4 << 20
NUM_LONG = 10  # With the short ones: 0.4 s at 1 Gbit/s.
_SHORT_BYTES = 8
_NUM_SHORT = 200


class Link(NamedTuple):
    """The connection between two ranks.

    Attributes:
        ranks: The two ranks.
        latency: Seconds that a message of 8 bytes takes.
        bandwidth: Bytes per second in each direction, both used at the same time.
    """

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


def rounds(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Returns the pairs of neighbors on a ring, in rounds without a common rank.

    So each rank is measured with two others, and a round uses all hosts at the same
    time, as a training does, without two measurements at one host.

    Args:
        ranks: Different ranks.
    """
    number = len(ranks)
    if number < 2:
        return []
    pairs = [(ranks[i], ranks[(i + 1) % number]) for i in range(number)]
    if number == 2:
        return [pairs[:1]]
    even = number - number % 2
    parts = [pairs[0:even:2], pairs[1:even:2], pairs[even:]]
    return [part for part in parts if part]


def measure(communicator: Communicator, ranks: Sequence[int]) -> list[Link]:
    """Returns the links of the ring of some ranks. To be called on all ranks.

    All ranks get the same result. Each of these ranks sends some 80 MB.

    Args:
        communicator: The ranks.
        ranks: One rank on each host.
    """
    links = []
    for pairs in rounds(ranks):
        partners = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
        partner = partners.get(communicator.rank)
        seconds = (0.0, 0.0)
        communicator.allgather(None)  # All begin together.
        if partner is not None:
            seconds = (
                _seconds(communicator, partner, _SHORT_BYTES, _NUM_SHORT),
                _seconds(communicator, partner, LONG_BYTES, NUM_LONG),
            )
        measured = communicator.allgather(seconds)
        for pair in pairs:
            latency, long = (max(measured[rank][i] for rank in pair) for i in (0, 1))
            links.append(Link(pair, latency, LONG_BYTES / long))
    return links


def _seconds(
    communicator: Communicator, partner: int, num_bytes: int, number: int
) -> float:
    """Returns the median time in which two ranks exchange messages of that length."""
    message = np.zeros(num_bytes, np.uint8)
    times = []
    for _ in range(1 + number):
        begin = time.perf_counter()
        communicator.exchange(message, partner)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])  # The first one makes the connection.
