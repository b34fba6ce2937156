"""The connections between hosts: what they cost, and what carries their messages."""

import contextlib
import os
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from resnet.distributed.communicator import Communicator
from resnet.watchdog import client

LONG_BYTES = 4 << 20
NUM_LONG = 10  # With the short ones: 0.4 s at 1 Gbit/s.
_SHORT_BYTES = 8
_NUM_SHORT = 200
# linux/tcp.h: struct tcp_info has the bytes that were sent and acknowledged there.
_BYTES_ACKED = 120
_TCP_INFO_BYTES = _BYTES_ACKED + 8
_WORD_BYTES = 4  # Ports count 32-bit words (InfiniBand specification, PortXmitData).
# Device files of verbs (InfiniBand, RoCE, EFA), Omni-Path and Slingshot.
_DEVICES = ("/dev/infiniband/", "/dev/hfi1", "/dev/cxi")


class Link(NamedTuple):
    """The connection between two ranks.

    Its latency are the seconds that a message of 8 bytes takes, its bandwidth the bytes
    per second in each direction, both used at the same time.
    """

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


def rounds(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Returns the pairs of neighbors on a ring, in rounds without a common rank.

    A round uses all hosts at the same time, as a training does, but each only once.
    """
    number = len(ranks)
    pairs = [(ranks[i], ranks[(i + 1) % number]) for i in range(number)]
    if number <= 2:
        return [pairs[:1]] if number == 2 else []
    even = number - number % 2
    parts = [pairs[0:even:2], pairs[1:even:2], pairs[even:]]
    return [part for part in parts if part]


def measure(communicator: Communicator, ranks: Sequence[int]) -> list[Link]:
    """Returns the links of the ring of some ranks. To be called on all ranks.

    All ranks get the same result. Each of these ranks sends some 80 MB.
    """
    links = []
    for pairs in rounds(ranks):
        partners = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
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


@dataclass(frozen=True)
class SentBytes:
    """What this process has sent by TCP, by the interface, and its host by each port.

    `open_devices` are the device files of fabrics that this process has opened.
    """

    tcp_bytes: Mapping[str, int]
    port_bytes: Mapping[str, int]
    open_devices: tuple[str, ...] = ()

    def since(self, earlier: "SentBytes") -> "SentBytes":
        """Returns what was sent after an earlier time."""
        return SentBytes(
            dict(Counter(self.tcp_bytes) - Counter(earlier.tcp_bytes)),
            dict(Counter(self.port_bytes) - Counter(earlier.port_bytes)),
            self.open_devices,
        )


def read_sent_bytes(root: Path = Path("/")) -> SentBytes:
    """Returns what was sent until now, read from the kernel below the folder `/`.

    MPI libraries choose a transport by themselves, and take TCP without a word where
    the driver of a fabric can't be used. So this asks the kernel, not the library.
    """
    interfaces, tcp_bytes = client.interfaces(), Counter[str]()
    for address, num_bytes in _tcp_sockets():
        tcp_bytes[interfaces.get(address, address)] += num_bytes
    return SentBytes(tcp_bytes, _port_bytes(root), _open_devices(root))


def _tcp_sockets() -> Iterator[tuple[str, int]]:
    """Yields the local address of each TCP socket, and the bytes that it has sent."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # Closed meanwhile, or not of TCP.
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                info = copy.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES
                )
                if len(info) < _TCP_INFO_BYTES:
                    continue  # Linux before 4.1.
                (num_bytes,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
                address = str(copy.getsockname()[0])
                yield address.removeprefix("::ffff:"), num_bytes


def _port_bytes(root: Path) -> dict[str, int]:
    """Returns the bytes that each port has sent, as in `mlx5_0:1`."""
    ports = {}
    counters = (root / "sys/class/infiniband").glob("*/ports/*/counters/port_xmit_data")
    for counter in counters:
        with contextlib.suppress(OSError, ValueError):
            port = counter.parents[1]
            words = int(counter.read_text())
            ports[f"{port.parents[1].name}:{port.name}"] = _WORD_BYTES * words
    return ports


def _open_devices(root: Path) -> tuple[str, ...]:
    targets = set()
    for path in (root / "proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # Closed meanwhile.
            targets.add(os.readlink(path))
    return tuple(sorted(name for name in targets if name.startswith(_DEVICES)))
