"""The /proc and /sys of other machines, as Linux writes them."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.topology import cpu_list

GIB = 1 << 30
# A logical processor by its socket, its NUMA node and its number of the core.
Cpu = tuple[int, int, int]


def write(
    root: Path,
    cpus: Sequence[Cpu],
    allowed: str = "",
    files: Mapping[str, str] | None = None,
    flags: str = "fpu avx2",
    memory_kib: int = 0,
) -> Path:
    """Writes the description of a machine, and returns its root.

    `cpus` are its logical processors in the order of their numbers, `allowed` those of
    the affinity mask, empty for all, and `files` further files by their paths.
    """
    everything = cpu_list(range(len(cpus)))
    base = "sys/devices/system/cpu"
    texts = {
        f"{base}/online": everything,
        "proc/self/status": f"Name:\tpy\nCpus_allowed_list:\t{allowed or everything}",
        "proc/cpuinfo": f"processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: {flags}",
        "proc/meminfo": f"MemTotal:       {memory_kib} kB\nMemFree: 1 kB",
        "proc/self/cgroup": "0::/\n",
        **(files or {}),
    }
    for number, (socket, numa_node, core) in enumerate(cpus):
        folder = f"{base}/cpu{number}"
        siblings = [
            other
            for other, (other_socket, _, other_core) in enumerate(cpus)
            if (other_socket, other_core) == (socket, core)
        ]
        texts |= {
            f"{folder}/topology/physical_package_id": f"{socket}",
            f"{folder}/topology/core_id": f"{core}",
            f"{folder}/topology/thread_siblings_list": cpu_list(siblings),
            f"{folder}/node{numa_node}/cpulist": "",
        }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def interface(name: str, speed: int, operstate: str = "up") -> dict[str, str]:
    """Returns the files of a network interface of hardware."""
    folder = f"sys/class/net/{name}"
    return {
        f"{folder}/device/vendor": "0x8086",
        f"{folder}/speed": f"{speed}",
        f"{folder}/operstate": operstate,
    }


def two_sockets(root: Path) -> Path:
    """Writes two sockets of 24 cores with hyper-threads, numbered in turn (Dell)."""
    cores = [(number % 2, number % 2, number // 2) for number in range(48)]
    port = "sys/class/infiniband/hfi1_0/ports/1"
    files = {
        **interface("eno1", 10_000),
        **interface("eno2", -1, "down"),
        "sys/class/net/lo/speed": "-1",
        f"{port}/rate": "100 Gb/sec (4X EDR)",
        f"{port}/state": "4: ACTIVE",
    }
    flags = "fpu avx2 avx512f"
    return write(root, cores * 2, files=files, flags=flags, memory_kib=192 << 20)


def sub_numa_clusters(root: Path) -> Path:
    """Writes two sockets of 16 cores in two clusters each, whose cores alternate."""
    cores = [
        (socket, 2 * socket + core % 2, core)
        for socket in range(2)
        for core in range(16)
    ]
    flags = "avx2 avx512f avx512_bf16 amx_tile amx_bf16"
    return write(root, cores, flags=flags, memory_kib=256 << 20)


def fragmented(root: Path) -> Path:
    """Writes a container with processors 0,4-11,21-26,30-46 of two sockets of 24."""
    cores = [(number // 24, number // 24, number % 24) for number in range(48)]
    cgroup = "sys/fs/cgroup/system.slice/job_7"
    files = {
        "proc/self/cgroup": "0::/system.slice/job_7",
        f"{cgroup}/cpuset.cpus.effective": "0,4-11,21-26,30-46",
        f"{cgroup}/cpu.max": "max 100000",
        f"{cgroup}/memory.max": "max",
        "sys/fs/cgroup/system.slice/memory.max": str(64 * GIB),
    }
    return write(root, cores, files=files, memory_kib=128 << 20)


def cgroup_v1(root: Path) -> Path:
    """Writes a machine of 16 cores of which a cgroup of version 1 allows four."""
    cores = [(0, 0, number) for number in range(16)]
    mount = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "9:memory:/slurm/job\n5:cpuset:/slurm/job\n3:cpu,x:/\n",
        f"{mount}/cpuset/slurm/job/cpuset.cpus": "4-7",
        f"{mount}/memory/slurm/job/memory.limit_in_bytes": str(8 * GIB),
        f"{mount}/memory/memory.limit_in_bytes": str((1 << 63) - 4096),
        f"{mount}/cpu/slurm/cpu.cfs_quota_us": "-1",
        f"{mount}/cpu/slurm/cpu.cfs_period_us": "100000",
        f"{mount}/cpu/cpu.cfs_quota_us": "150000",
        f"{mount}/cpu/cpu.cfs_period_us": "100000",
    }
    return write(root, cores, files=files, memory_kib=64 << 20)


def laptop(root: Path) -> Path:
    """Writes 6 cores with hyper-threads and 8 efficiency cores (Intel's hybrid)."""
    fast = [(0, 0, 4 * (number // 2)) for number in range(12)]
    slow = [(0, 0, 24 + number) for number in range(8)]
    files = {
        "sys/devices/cpu_core/cpus": "0-11",
        "sys/devices/cpu_atom/cpus": "12-19",
        **interface("wlp1s0", -1),
    }
    return write(root, fast + slow, files=files, memory_kib=16 << 20)


def big_little(root: Path) -> Path:
    """Writes an Arm processor with four fast cores and four slow ones."""
    files = {
        f"sys/devices/system/cpu/cpu{number}/cpu_capacity": f"{capacity}"
        for number, capacity in enumerate([1024] * 4 + [446] * 4)
    }
    return write(root, [(0, 0, number) for number in range(8)], files=files)


def _arm_cpuinfo(features: str, part: str) -> dict[str, str]:
    return {
        "proc/cpuinfo": f"processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: {features}"
        f"\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {part}"
    }


def graviton(root: Path) -> Path:
    """Writes two Arm sockets of 32 cores, numbered by firmware, without SMT."""
    cores = [
        (socket, numa_node, socket + 80 * (number + 1))
        for numa_node, socket in enumerate((36, 4164))
        for number in range(32)
    ]
    files = {
        **_arm_cpuinfo("fp asimd evtstrm atomics asimddp sve bf16 i8mm", "0xd40"),
        **interface("ens5", 25_000),
    }
    return write(root, cores, files=files, memory_kib=256 << 20)


def raspberry_pi(root: Path) -> Path:
    """Writes four cores of a kernel without NUMA nodes or a cgroup for memory."""
    files = {
        **_arm_cpuinfo("fp asimd evtstrm crc32 cpuid", "0xd08"),
        **{
            f"sys/devices/system/cpu/cpu{number}/cpu_capacity": "1024"
            for number in range(4)
        },
        **interface("eth0", 1000),
    }
    root = write(root, [(0, 0, number) for number in range(4)], files=files)
    for folder in root.glob("sys/devices/system/cpu/cpu*/node0"):
        shutil.rmtree(folder)
    return root


def single_core(root: Path) -> Path:
    """Writes a virtual machine with one core, without any cgroup."""
    root = write(root, [(0, 0, 0)], memory_kib=2 << 20)
    (root / "proc/self/cgroup").unlink()
    return root


def one_of_many(root: Path) -> Path:
    """Writes a machine of 64 cores of which a cgroup allows one."""
    files = {"sys/fs/cgroup/cpuset.cpus.effective": "17"}
    return write(root, [(0, 0, number) for number in range(64)], files=files)


def quota(root: Path) -> Path:
    """Writes a container of 16 cores with the processor time of four and a half."""
    files = {"sys/fs/cgroup/cpu.max": "450000 100000"}
    return write(root, [(0, 0, number) for number in range(16)], files=files)


MACHINES = (
    *(two_sockets, sub_numa_clusters, fragmented, cgroup_v1, laptop, big_little),
    *(graviton, raspberry_pi, single_core, one_of_many, quota),
)
