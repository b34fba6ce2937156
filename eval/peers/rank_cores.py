"""The physical cores of a peer's ranks, divided as this project divides them.

`resnet.hardware.placement` does the same for training, but needs absl, which a peer's
environment lacks. This file uses the standard library only.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def group_by_core(cpus: Sequence[int], topology: Path = CPUS) -> list[tuple[int, ...]]:
    """Returns the logical processors of each core, ordered by socket and NUMA node.

    Args:
        cpus: The logical processors that the process may use.
        topology: The folder in which Linux describes them. A processor without a
            description counts as a core of its own.
    """
    cores: dict[tuple[int, int, int, str], list[int]] = {}
    for cpu in sorted(cpus):
        folder = topology / f"cpu{cpu}"
        nodes = [entry.name for entry in folder.glob("node[0-9]*")]
        numa_node = int(nodes[0].removeprefix("node")) if nodes else 0
        try:
            siblings = (folder / "topology/thread_siblings_list").read_text()
            socket = int((folder / "topology/physical_package_id").read_text())
            core = int((folder / "topology/core_id").read_text())
        except (OSError, ValueError):
            siblings, socket, core = "", -1, cpu
        cores.setdefault((socket, numa_node, core, siblings), []).append(cpu)
    keys = sorted(cores, key=lambda key: (key[:3], cores[key]))
    return [tuple(cores[key]) for key in keys]


def of_rank(
    rank: int, num_ranks: int, cores: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Returns the cores of a rank: all cores are divided into contiguous blocks.

    Args:
        rank: The rank, from 0.
        num_ranks: The number of ranks, at most that of the cores.
        cores: The cores of all ranks, as `group_by_core` returns them.
    """
    first, end = (n * len(cores) // num_ranks for n in (rank, rank + 1))
    return list(cores[first:end])


def usable() -> list[tuple[int, ...]]:
    """Returns the cores that this process may use."""
    return group_by_core(sorted(os.sched_getaffinity(0)))


def check(num_ranks: int) -> None:
    """Exits with code 2 and a sentence if the ranks can't have a core each."""
    num_cores = len(usable())
    if not 1 <= num_ranks <= num_cores:
        print(
            f"error: --ranks must be from 1 to {num_cores}, the number of physical"
            f" cores that the ranks may use; got {num_ranks}.",
            file=sys.stderr,
        )
        sys.exit(2)
