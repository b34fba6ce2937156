"""Reads the topology of a Linux machine from its /proc and /sys.

Every function takes the folder that stands for `/`, so that the description of another
machine can be read too.
"""

import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from launch import topology
from launch.topology import Core, Interface, Topology
from resnet.hardware import cpu_features

_CPUS = "sys/devices/system/cpu"
_NO_LIMIT = (
    1 << 60
)  # Above it a limit of memory means none; cgroup v1 has 2**63 - 4096.


def probe(root: Path = Path("/")) -> Topology:
    """Returns the topology of one machine, with the cores that this process may use."""
    online = _online(root)
    usable = sorted(set(online) & set(_allowed(root)))
    installed = _cores(root, online)
    memory = _memory_bytes(root)
    features = cpu_features.flags(root / "proc/cpuinfo")
    is_this_machine = root == Path("/")
    if is_this_machine and cpu_features.amx_is_hidden(features):
        features -= {"amx_bf16"}  # The training leaves it out, too.
    model = cpu_features.model_name(root / "proc/cpuinfo")
    return Topology(
        num_nodes=1,
        cores=tuple(_cores(root, usable)),
        num_installed_cores=len(installed),
        threads_per_core=max(len(core.cpus) for core in installed),
        memory_bytes=memory,
        instruction_sets=tuple(
            name for name in topology.INSTRUCTION_SETS if name in features
        ),
        interfaces=tuple(_interfaces(root)),
        cpu_model=model,
        cpu_quota=_cpu_quota(root),
        source=topology.OF_THIS_MACHINE if is_this_machine else f"read from {root}",
        hosts=(platform.node(),) if is_this_machine else (),
    )


def _read(path: Path) -> str:
    """Returns the text of a file without white space around it; empty if unreadable.

    Linux refuses to read some of these files, such as the speed of an interface that
    is down.
    """
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path, default: int) -> int:
    text = _read(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else default


def _online(root: Path) -> list[int]:
    if listed := topology.parse_cpu_list(_read(root / _CPUS / "online")):
        return listed
    return _affinity(root) or [0]


def _affinity(root: Path) -> list[int]:
    """Returns the logical processors of this process's affinity mask."""
    status = _read(root / "proc/self/status")
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.M)
    return topology.parse_cpu_list(match[1]) if match else []


def _allowed(root: Path) -> list[int]:
    """Returns the logical processors that affinity mask and cpuset allow."""
    allowed = _affinity(root) or _online(root)
    for folder in _cgroups(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if listed := topology.parse_cpu_list(_read(folder / name)):
                return sorted(set(allowed) & set(listed))
    return allowed


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's cgroup and of those around it.

    Version 2 has one tree of all controllers, version 1 one for each. In a container
    the path of a cgroup may be that outside, which isn't there.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top = mount
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        folder = top / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder == top:
                break
            folder = folder.parent


def _cpu_quota(root: Path) -> float:
    """Returns the smallest limit of processor time, in processors; 0 for none."""
    quotas = []
    for folder in _cgroups(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if len(words) < 2:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [_read(folder / name) for name in names]
        if all(word.isdigit() for word in words):  # Without a limit it is "max" or -1.
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=0.0)


def _memory_bytes(root: Path) -> int:
    """Returns the memory that this process may use, in bytes; 0 if it isn't known."""
    match = re.search(r"^MemTotal:\s*(\d+) kB$", _read(root / "proc/meminfo"), re.M)
    sizes = [1024 * int(match[1])] if match else []
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(folder / name, _NO_LIMIT)
            if limit < _NO_LIMIT:
                sizes.append(limit)
    return min(sizes, default=0)


def _cores(root: Path, cpus: Sequence[int]) -> list[Core]:
    """Returns the cores of some logical processors, by socket and NUMA node."""
    slow = _efficiency_cpus(root)
    siblings: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        listed = _read(root / _CPUS / f"cpu{cpu}/topology/thread_siblings_list")
        key = tuple(topology.parse_cpu_list(listed)) or (cpu,)
        siblings.setdefault(key, []).append(cpu)
    cores = []
    for of_core in siblings.values():
        folder = root / _CPUS / f"cpu{of_core[0]}"
        nodes = [entry.name for entry in folder.glob("node[0-9]*")]
        numa_node = int(nodes[0].removeprefix("node")) if nodes else 0
        socket = max(_number(folder / "topology/physical_package_id", 0), 0)
        is_slow = of_core[0] in slow
        cores.append(Core(socket, numa_node, tuple(of_core), is_slow))

    def place(core: Core) -> tuple[int, int, int]:
        first = core.cpus[0]
        number = _number(root / _CPUS / f"cpu{first}/topology/core_id", first)
        return core.socket, core.numa_node, number

    return sorted(cores, key=place)


def _efficiency_cpus(root: Path) -> set[int]:
    """Returns the logical processors of slower cores beside faster ones.

    Intel's hybrid processors list them as a device; on Arm their capacity is smaller.
    """
    atom = topology.parse_cpu_list(_read(root / "sys/devices/cpu_atom/cpus"))
    if atom:
        return set(atom)
    capacities = {
        cpu: _number(root / _CPUS / f"cpu{cpu}/cpu_capacity", 0)
        for cpu in _online(root)
    }
    largest = max(capacities.values(), default=0)
    return {cpu for cpu, capacity in capacities.items() if capacity < largest}


def _interfaces(root: Path) -> list[Interface]:
    """Returns the network devices: Ethernet, and InfiniBand or Omni-Path ports."""
    found = []
    for folder in sorted((root / "sys/class/net").glob("*")):
        if not (folder / "device").exists():  # The loopback, bridges and the like.
            continue
        if _read(folder / "operstate") != "down":
            speed = max(_number(folder / "speed", 0), 0)
            found.append(Interface(folder.name, speed))
    for rate in sorted((root / "sys/class/infiniband").glob("*/ports/*/rate")):
        match = re.match(r"([\d.]+) Gb/sec", _read(rate))
        if match and "ACTIVE" in _read(rate.with_name("state")):
            name = f"{rate.parents[2].name}:{rate.parent.name}"
            found.append(Interface(name, round(1000 * float(match[1]))))
    return found
