"""The processors, memory and network of the nodes: stated, probed or read of a file."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from resnet.base import json_file, limits
from resnet.base.errors import UserError
from resnet.hardware import cpu_features, physical_cores

# Those that the compiled ops and oneDNN choose their code by.
_OF_X86 = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
INSTRUCTION_SETS = (*_OF_X86, "asimd", "sve", "bf16")  # "asimd" is Arm's NEON.
OF_THIS_MACHINE = "read from this machine"
# Fields that may differ between hosts of a job without changing its plan.
_OF_ONE_HOST = ("source", "hosts", "interfaces", "memory_bytes")
_OUTPUT = "the output of `launch/plan.py --probe --print=topology`"
_MEMORY_TOLERANCE = 0.02  # Firmware keeps a little of the same memory.
_CPUS = "sys/devices/system/cpu"
_NO_LIMIT = 1 << 60  # A limit of memory above it is none; cgroup v1 has 2**63 - 4096.


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


def stated(
    num_nodes: int,
    sockets: int,
    cores_per_socket: int,
    threads_per_core: int = 1,
    numa_per_socket: int = 1,
    memory_bytes: int = 0,
) -> Topology:
    """Returns the topology of a cluster that is described by numbers above 0."""
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


def read(path: str) -> Topology:
    """Returns the topology that `to_json` has written to a file, or sends to a pipe."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} must hold {_OUTPUT}; it can't be read: {error.strerror}."
        ) from error
    advice = "Run that on a node of the cluster."
    return json_file.parse(text, Topology, path, _OUTPUT, advice)


def of_hosts(probed: Sequence[tuple[str, Topology]]) -> Topology:
    """Returns the topology of probed hosts; UserError names one that differs."""
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
    sizes = first.memory_bytes, other.memory_bytes
    if abs(sizes[0] - sizes[1]) > _MEMORY_TOLERANCE * max(sizes):
        return f"memory ({sizes[0] / 1e9:.0f} and {sizes[1] / 1e9:.0f} GB)"
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
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][-1] + 1:
            ranges[-1][1:] = [cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def probe(root: Path = Path("/")) -> Topology:
    """Returns the topology of one machine, with the cores that this process may use.

    The folder `root` stands for `/`: that of this machine, or another's copy.
    """
    status = limits.read(root / "proc/self/status")
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.M)
    affinity = parse_cpu_list(match[1]) if match else []
    online = parse_cpu_list(limits.read(root / _CPUS / "online")) or affinity or [0]
    allowed = set(affinity or online) & set(_cpuset(root) or online)
    installed = _cores(root, online)
    features = cpu_features.flags(root / "proc/cpuinfo")
    is_this_machine = root == Path("/")
    return Topology(
        num_nodes=1,
        cores=tuple(_cores(root, sorted(allowed.intersection(online)))),
        num_installed_cores=len(installed),
        threads_per_core=max(len(core.cpus) for core in installed),
        memory_bytes=_memory_bytes(root),
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in features),
        interfaces=tuple(_interfaces(root)),
        cpu_model=cpu_features.model_name(root / "proc/cpuinfo"),
        cpu_quota=limits.cpu_quota(root),
        source=OF_THIS_MACHINE if is_this_machine else f"read from {root}",
        hosts=(platform.node(),) if is_this_machine else (),
    )


def _number(path: Path, default: int) -> int:
    text = limits.read(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else default


def _cpuset(root: Path) -> list[int]:
    """Returns the logical processors that a cgroup allows; none without a limit."""
    for folder in limits.cgroups(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if cpus := parse_cpu_list(limits.read(folder / name)):
                return cpus
    return []


def _memory_bytes(root: Path) -> int:
    """Returns the memory that this process may use, in bytes; 0 if it isn't known."""
    match = re.search(
        r"^MemTotal:\s*(\d+) kB$", limits.read(root / "proc/meminfo"), re.M
    )
    sizes = [1024 * int(match[1])] if match else []
    for folder in limits.cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            sizes.append(_number(folder / name, _NO_LIMIT))
    return min((size for size in sizes if size < _NO_LIMIT), default=0)


def _cores(root: Path, cpus: Sequence[int]) -> list[Core]:
    """Returns the cores of some logical processors, by socket and NUMA node."""
    slow, folder = _efficiency_cpus(root), root / _CPUS
    cores = []
    for of_core in physical_cores.group_by_core(cpus, folder):
        socket, numa_node, _ = physical_cores.place(of_core[0], folder)
        cores.append(Core(max(socket, 0), numa_node, of_core, of_core[0] in slow))
    return cores


def _efficiency_cpus(root: Path) -> set[int]:
    """Returns the slower processors: Intel's device, or of less capacity on Arm."""
    if atom := parse_cpu_list(limits.read(root / "sys/devices/cpu_atom/cpus")):
        return set(atom)
    capacities = {
        int(path.parent.name.removeprefix("cpu")): _number(path, 0)
        for path in (root / _CPUS).glob("cpu[0-9]*/cpu_capacity")
    }
    largest = max(capacities.values(), default=0)
    return {cpu for cpu, capacity in capacities.items() if capacity < largest}


def _interfaces(root: Path) -> Iterator[Interface]:
    """Yields the network devices: Ethernet, and InfiniBand or Omni-Path ports."""
    for folder in sorted((root / "sys/class/net").glob("*")):
        # The loopback, bridges and the like have no device.
        if (folder / "device").exists() and limits.read(folder / "operstate") != "down":
            yield Interface(folder.name, max(_number(folder / "speed", 0), 0))
    for rate in sorted((root / "sys/class/infiniband").glob("*/ports/*/rate")):
        match = re.match(r"([\d.]+) Gb/sec", limits.read(rate))
        if match and "ACTIVE" in limits.read(rate.with_name("state")):
            name = f"{rate.parents[2].name}:{rate.parent.name}"
            yield Interface(name, round(1000 * float(match[1])))
