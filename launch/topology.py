"""The processors, memory and network of the nodes of a cluster, as one value.

They are stated on the command line, read by `probe`, or loaded from a file that an
earlier probe has written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from resnet.base import json_file
from resnet.base.errors import UserError

# Those that the compiled ops and oneDNN choose their code by.
INSTRUCTION_SETS = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
OF_THIS_MACHINE = "read from this machine"
# Fields that may differ between hosts of a job without changing its plan.
_OF_ONE_HOST = ("source", "hosts", "interfaces", "memory_bytes")
_OUTPUT = "the output of `launch/plan.py --probe --print=topology`"
_ADVICE = "Run that on a node of the cluster."
_MEMORY_TOLERANCE = 0.02  # Firmware keeps a little of the same memory.


@dataclass(frozen=True)
class Core:
    """A physical core."""

    socket: int
    numa_node: int  # A socket has several with sub-NUMA clusters.
    cpus: tuple[int, ...]  # Its hyper-threads by their numbers in Linux.
    is_efficiency_core: bool = False  # Whether it is slower than others.


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    megabits_per_second: int  # 0 if it isn't known.


@dataclass(frozen=True)
class Topology:
    """The nodes of a cluster, which are all equal."""

    num_nodes: int
    cores: tuple[Core, ...]  # That a job may use, by socket and NUMA node.
    num_installed_cores: int  # With those that a cgroup or an affinity mask excludes.
    threads_per_core: int = 1
    memory_bytes: int = 0  # That a job may use; 0 if it isn't known.
    instruction_sets: tuple[str, ...] = ()  # Of `INSTRUCTION_SETS`.
    interfaces: tuple[Interface, ...] = ()
    cpu_model: str = ""
    cpu_quota: float = 0.0  # Processors whose time a cgroup allows; 0 for no limit.
    source: str = "as stated"  # How the values were found.
    # Whether the processors have the machine's numbers. Firmware numbers sockets one
    # after the other or in turn, so these don't follow from the number of cores.
    has_cpu_numbers: bool = True
    hosts: tuple[str, ...] = ()  # The names of the nodes, if they are known.

    def __post_init__(self) -> None:
        if not self.cores:
            raise UserError("'cores' must name at least one; it is empty")

    @property
    def sockets(self) -> tuple[int, ...]:
        """The numbers of the sockets with usable cores."""
        return tuple(sorted({core.socket for core in self.cores}))

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The numbers of the NUMA nodes with usable cores."""
        return tuple(sorted({core.numa_node for core in self.cores}))

    @property
    def gigabits_per_second(self) -> float:
        """The speed of the fastest interface; 0 if none is known."""
        speeds = [interface.megabits_per_second for interface in self.interfaces]
        return max(speeds, default=0) / 1000


def stated(
    num_nodes: int,
    sockets: int,
    cores_per_socket: int,
    threads_per_core: int = 1,
    numa_per_socket: int = 1,
    memory_bytes: int = 0,
) -> Topology:
    """Returns the topology of a cluster that is described by numbers.

    Raises:
        UserError: If a number is below 1, or the cores of a socket can't be divided
            evenly by its NUMA nodes.
    """
    numbers = {
        "num_nodes": num_nodes,
        "sockets": sockets,
        "cores_per_socket": cores_per_socket,
        "threads_per_core": threads_per_core,
        "numa_per_socket": numa_per_socket,
    }
    for name, value in numbers.items():
        if value < 1:
            raise UserError(f"--{name} must be at least 1; got {value}.")
    if cores_per_socket % numa_per_socket:
        raise UserError(
            "--cores_per_socket must be a multiple of --numa_per_socket; got"
            f" {cores_per_socket} and {numa_per_socket}."
        )
    num_cores = sockets * cores_per_socket
    cores_per_numa_node = cores_per_socket // numa_per_socket
    cores = tuple(
        Core(
            socket=number // cores_per_socket,
            numa_node=number // cores_per_numa_node,
            cpus=tuple(range(number, num_cores * threads_per_core, num_cores)),
        )
        for number in range(num_cores)
    )
    return Topology(
        num_nodes=num_nodes,
        cores=cores,
        num_installed_cores=num_cores,
        threads_per_core=threads_per_core,
        memory_bytes=memory_bytes,
        has_cpu_numbers=False,
    )


def to_json(topology: Topology) -> str:
    """Returns a topology as a JSON text, which `from_json` reads."""
    return json.dumps(dataclasses.asdict(topology), indent=1)


def from_json(text: str, described: str) -> Topology:
    """Returns the topology in a JSON text that `to_json` has returned.

    Raises:
        UserError: If the text holds something else.
    """
    return json_file.parse(text, Topology, described, _OUTPUT, _ADVICE)


def read(path: str) -> Topology:
    """Returns the topology in a file.

    Raises:
        UserError: If it can't be read, or holds something else.
    """
    return json_file.read(path, Topology, _OUTPUT, _ADVICE)


def of_hosts(probed: Sequence[tuple[str, Topology]]) -> Topology:
    """Returns the topology of several hosts, each of which was probed.

    Raises:
        UserError: If the hosts differ, naming one that does and in what.
    """
    first_host, first = probed[0]
    for host, other in probed[1:]:
        if different := _difference(first, other):
            raise UserError(
                "the hosts of a job must be equal, since all ranks wait for the"
                f" slowest; {first_host} and {host} differ in {different}. Plan a job"
                " for the hosts of each kind."
            )
    return dataclasses.replace(
        first,
        num_nodes=len(probed),
        memory_bytes=min(node.memory_bytes for _, node in probed),
        hosts=tuple(host for host, _ in probed),
        source=f"read from {len(probed)} hosts",
    )


def repeated(node: Topology, num_nodes: int, hosts: Sequence[str]) -> Topology:
    """Returns the topology of several nodes that are like one."""
    known = tuple(hosts) or (node.hosts if num_nodes == 1 else ())
    return dataclasses.replace(node, num_nodes=num_nodes, hosts=known)


def _difference(first: Topology, other: Topology) -> str:
    """Returns the first difference of two hosts that a job can't have, in words."""
    for field in dataclasses.fields(Topology):
        values = getattr(first, field.name), getattr(other, field.name)
        if field.name in _OF_ONE_HOST or values[0] == values[1]:
            continue
        if field.name == "cores":
            return f"their usable cores ({len(values[0])} and {len(values[1])})"
        return f"{field.name} ({values[0]} and {values[1]})"
    largest = max(first.memory_bytes, other.memory_bytes)
    if abs(first.memory_bytes - other.memory_bytes) > _MEMORY_TOLERANCE * largest:
        sizes = [f"{node.memory_bytes / 1e9:.0f}" for node in (first, other)]
        return f"memory ({sizes[0]} and {sizes[1]} GB)"
    return ""


def parse_cpu_list(text: str) -> list[int]:
    """Returns the numbers in Linux's form of a list, such as `0,4-11`."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def cpu_list(cpus: Sequence[int]) -> str:
    """Returns numbers in Linux's form of a list, the inverse of `parse_cpu_list`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(
        f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts
    )
