"""Divides the cores of a node among its ranks, and those of a rank among its threads.

The cores of each rank are those that the rank binds itself to
(`resnet.hardware.physical_cores`): the same function divides them here and there.
"""

import math
from collections import Counter
from dataclasses import dataclass

from launch.topology import Core, Topology, cpu_list
from resnet.base.errors import UserError
from resnet.base.text import counted
from resnet.hardware import physical_cores

# From so many cores of a rank on, some are left to Horovod's thread and the input.
# The published run left 2 of 24 (SURFsara, Intel and Dell 2018).
_CORES_FOR_TWO, _CORES_FOR_ONE = 16, 8


@dataclass(frozen=True)
class Layout:
    """The ranks of a job, and the cores and threads of each."""

    num_nodes: int
    ranks_per_node: int  # Those that divide its cores.
    cores: tuple[tuple[Core, ...], ...]  # Of each local rank.
    num_intra_threads: int  # Of a rank that share an op.
    num_inter_threads: int  # Ops of a rank at the same time.
    restricted_to: tuple[int, ...]  # Processors that the launcher restricts ranks to.
    reasons: tuple[str, ...]  # Why the layout is so, in sentences.
    warnings: tuple[str, ...]  # What may be wrong or slow, in sentences.

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the job that divide the cores."""
        return self.num_nodes * self.ranks_per_node

    @property
    def cores_per_rank(self) -> int:
        """The number of cores of the ranks that have the fewest."""
        return min(map(len, self.cores))

    @property
    def cores_per_node(self) -> int:
        """The number of cores of a node that the ranks use."""
        return sum(map(len, self.cores))

    @property
    def num_communication_cores(self) -> int:
        """The number of cores of a rank that its intra-op threads leave free."""
        return max(self.cores_per_rank - self.num_intra_threads, 0)


def choose(
    topology: Topology,
    ranks_per_node: int | None = None,
    num_intra_threads: int = 0,
    num_inter_threads: int = 0,
) -> Layout:
    """Returns the layout of a job; UserError for a rank without a core for each thread.

    Unless they are given, there is a rank per NUMA node, a few of whose cores are left
    to communication and the input pipeline, and an inter-op thread for each of these.
    """
    cores, reasons, warnings = _usable(topology)
    is_chosen = ranks_per_node is None
    if ranks_per_node is None:
        _refuse_single_core(topology)
        ranks_per_node = len({core.numa_node for core in cores})
    if ranks_per_node > len(cores):
        raise UserError(
            f"each rank needs a core of its own; got {ranks_per_node} ranks for the"
            f" {counted(len(cores), 'usable core')} of a node."
        )
    divided = _divide(cores, ranks_per_node)
    if is_chosen:
        reasons.append(_reason_for_ranks(divided))
    smallest = min(map(len, divided))
    if num_intra_threads > smallest:
        raise UserError(
            "a rank must have a core for each of its intra-op threads; got"
            f" --num_intra_threads={num_intra_threads} for its cores, {smallest}."
        )
    left = (smallest >= _CORES_FOR_ONE) + (smallest >= _CORES_FOR_TWO)
    if num_intra_threads:
        left = smallest - num_intra_threads
    if left:
        reasons.append(
            f"{left} of the {smallest} cores of a rank don't compute: they are left to"
            " Horovod's thread, which is pinned to the last one, and to the input"
            " pipeline"
        )
    warnings += _warnings_of_division(divided, is_chosen)
    restricts = len(cores) < len(topology.cores)
    return Layout(
        num_nodes=topology.num_nodes,
        ranks_per_node=ranks_per_node,
        cores=divided,
        num_intra_threads=smallest - left,
        num_inter_threads=num_inter_threads or max(left, 1),
        restricted_to=tuple(_cpus(cores)) if restricts else (),
        reasons=tuple(reasons),
        warnings=tuple(warnings),
    )


def _cpus(cores: list[Core]) -> list[int]:
    return [cpu for core in cores for cpu in core.cpus]


def _divide(cores: list[Core], num_ranks: int) -> tuple[tuple[Core, ...], ...]:
    """Returns the cores of each rank of a node, as the ranks divide them themselves."""
    by_cpus = {core.cpus: core for core in cores}
    seen = [list(by_cpus)] * num_ranks
    return tuple(
        tuple(by_cpus[cpus] for cpus in physical_cores.of_rank(rank, seen))
        for rank in range(num_ranks)
    )


def _refuse_single_core(topology: Topology) -> None:
    """Refuses a node that leaves a job one of several cores: hardly ever intended."""
    is_single = len(topology.cores) == 1 or 0 < topology.cpu_quota < 2
    if is_single and topology.num_installed_cores > 1:
        raise UserError(
            "a cgroup or an affinity mask must leave a job more than one core; it"
            f" leaves one of {topology.num_installed_cores}. Ask the scheduler for"
            " whole nodes, or plan for one core by --ranks_per_node=1."
        )


def _usable(topology: Topology) -> tuple[list[Core], list[str], list[str]]:
    cores = list(topology.cores)
    reasons, warnings = [], []
    if topology.num_installed_cores > len(cores):
        warnings.append(
            f"a cgroup or an affinity mask allows only {len(cores)} of the"
            f" {topology.num_installed_cores} cores of the node (processors"
            f" {cpu_list(_cpus(cores))}). A scheduler may give whole nodes"
        )
    fast = [core for core in cores if not core.is_efficiency_core]
    if fast and len(fast) < len(cores):
        reasons.append(
            f"the {len(cores) - len(fast)} efficiency cores are left out: the threads"
            " of an op wait for the slowest one"
        )
        cores = fast
    if 0 < topology.cpu_quota < len(_cpus(cores)):
        # A quota counts logical processors; one thread runs on each core.
        allowed = min(max(int(topology.cpu_quota), 1), len(cores))
        warnings.append(
            f"a cgroup limits the processor time to that of {topology.cpu_quota:g}"
            f" processors, so that {allowed} of {len(cores)} cores are used"
        )
        cores = cores[:allowed]
    if len(cores) == 1:
        warnings.append(
            "there is only one core, which computes, communicates and reads"
        )
    return cores, reasons, warnings


def _reason_for_ranks(divided: tuple[tuple[Core, ...], ...]) -> str:
    numbers = Counter(core.numa_node for cores in divided for core in cores)
    if len(numbers) == 1:
        return "one rank, since the node has one socket and one NUMA node"
    is_socket = len(numbers) == len({core.socket for of in divided for core in of})
    if all(len({core.numa_node for core in cores}) == 1 for cores in divided):
        where = "socket" if is_socket else f"of the {len(numbers)} NUMA nodes"
        return f"one rank on each {where}, so that its memory is near its cores"
    return (
        f"as many ranks as {'sockets' if is_socket else 'NUMA nodes'}, which have"
        f" {' and '.join(map(str, numbers.values()))} usable cores: the ranks divide"
        " these evenly, so that none waits for a smaller one"
    )


def _warnings_of_division(
    divided: tuple[tuple[Core, ...], ...], is_chosen: bool
) -> list[str]:
    warnings = []
    sizes = {len(cores) for cores in divided}
    if len(sizes) > 1:
        warnings.append(
            f"the ranks of a node have {min(sizes)} or {max(sizes)} cores, and all wait"
            f" for those with {min(sizes)}"
        )
    nodes_of_ranks = [{core.numa_node for core in cores} for cores in divided]
    crossing = [
        str(rank) for rank, nodes in enumerate(nodes_of_ranks) if len(nodes) > 1
    ]
    if crossing and len(divided) > 1:
        # Ranks of a size that divides the cores of each NUMA node stay in theirs.
        counts = Counter(core.numa_node for cores in divided for core in cores)
        size = math.gcd(*counts.values())
        better = f". --ranks_per_node={counts.total() // size} avoids it"
        warnings.append(
            f"a node's ranks {', '.join(crossing)} have cores of several NUMA nodes, so"
            f" that a part of their memory is far{better * (size > 1)}"
        )
    elif crossing and not is_chosen:
        warnings.append(
            f"one rank uses the cores of {len(nodes_of_ranks[0])} NUMA nodes, so that"
            " a part of its memory is far"
        )
    return warnings
