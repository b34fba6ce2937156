"""The physical cores of a node and of each of its ranks. Standard library only."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from resnet.base import limits

_CPUS = Path("/sys/devices/system/cpu")


def place(cpu: int, topology: Path = _CPUS) -> tuple[int, int, int]:
    """Returns the socket, the NUMA node and the core of a logical processor.

    One without a description in the folder counts as a core of its own, on socket -1.
    """
    folder = topology / f"cpu{cpu}"
    nodes = [entry.name for entry in folder.glob("node[0-9]*")]
    numa_node = int(nodes[0].removeprefix("node")) if nodes else 0
    try:
        socket = int((folder / "topology/physical_package_id").read_text())
        return socket, numa_node, int((folder / "topology/core_id").read_text())
    except (OSError, ValueError):
        return -1, numa_node, cpu


def group_by_core(cpus: Iterable[int], topology: Path = _CPUS) -> list[tuple[int, ...]]:
    """Returns the logical processors of each core, ordered by socket and NUMA node.

    Linux numbers the cores of a socket across its sub-NUMA clusters. On some machines
    the number of a core repeats within a socket, as in each of its dies.
    """
    cores: dict[tuple[tuple[int, int, int], str], list[int]] = {}
    for cpu in sorted(cpus):
        threads = limits.read(topology / f"cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault((place(cpu, topology), threads), []).append(cpu)
    keys = sorted(cores, key=lambda key: (key[0], cores[key]))
    return [tuple(cores[key]) for key in keys]


def usable() -> list[tuple[int, ...]]:
    """Returns the cores that this process may use, as `group_by_core` does."""
    return group_by_core(os.sched_getaffinity(0))


def of_rank(
    local_rank: int, cores_seen: Sequence[Sequence[tuple[int, ...]]]
) -> list[tuple[int, ...]]:
    """Returns the physical cores that a rank uses.

    Ranks of a node that may use the same cores divide them into contiguous blocks; with
    more ranks than cores, ranks share a core. `cores_seen` has the cores that each rank
    of the node may use, as `group_by_core` returns them, by local rank.
    """
    own = list(cores_seen[local_rank])
    sharers = [rank for rank, seen in enumerate(cores_seen) if list(seen) == own]
    number = sharers.index(local_rank)
    if len(sharers) >= len(own):
        return [own[number % len(own)]]
    first = number * len(own) // len(sharers)
    return own[first : (number + 1) * len(own) // len(sharers)]
