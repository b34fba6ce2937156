"""What the kernel and a cgroup allow this process. Standard library only.

The libraries below abort at such limits, or end with a code of their own.
"""

import math
import os
import resource
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

OPEN_FILES = 16_384
# The import of TensorFlow takes 2 GB of addresses, MPICH 50 files.
_LEAST = (
    (resource.RLIMIT_NOFILE, 64, "open files (ulimit -Hn)"),
    (resource.RLIMIT_AS, 4 << 30, "bytes of addresses (ulimit -v)"),
)
_THREADS_OF_CORE = 3
_FORKING = ("fork_rank", "_execute_child")  # The latter is that of `subprocess`.


def usable_cpus(root: Path = Path("/")) -> int:
    """Returns how many threads can compute at once, by affinity and by CPU quota."""
    num_cpus = len(os.sched_getaffinity(0))
    return min(num_cpus, math.ceil(cpu_quota(root)) or num_cpus)


def cpu_quota(root: Path = Path("/")) -> float:
    """Returns the smallest limit of processor time, in processors; 0 for none."""
    quotas = []
    for folder in cgroups(root, "cpu"):
        words = read(folder / "cpu.max").split()
        if len(words) < 2:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [read(folder / name) for name in names]
        if all(word.isdigit() for word in words):  # Without a limit it is "max" or -1.
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=0.0)


def cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's cgroup and of those around it.

    Version 2 has one tree of all controllers. A container may name paths outside it.
    """
    mount = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top = mount
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_dir():
                yield group
            if group == top:
                break


def read(path: Path) -> str:
    """Returns the stripped text of a file; empty if Linux refuses to read it.

    Names of processes and files in it needn't be UTF-8.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def allow_open_files() -> None:
    """Raises the limit of open files to the hard limit, and to 16,384 at most.

    A thousand record files stay open while they are read; the usual limit is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def describe_shortage(
    num_local_ranks: int = 1, local_rank: int = 0, num_threads: int = 24
) -> str:
    """Returns which limit is too low for a rank, as a sentence; empty if none is.

    The first rank of a node looks whether the threads of all of them may be started,
    `num_threads` each (of TensorFlow, MPI, Horovod and the watchdog) and some per core.
    """
    allow_open_files()
    for kind, least, what in _LEAST:
        allowed, _ = resource.getrlimit(kind)
        if resource.RLIM_INFINITY != allowed < least:
            return (
                f"a process must be allowed {least:,} {what}; this one is allowed"
                f" {allowed:,}. Raise that limit."
            )
    num_all = num_local_ranks * num_threads + _THREADS_OF_CORE * usable_cpus()
    may_end, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(num_all if local_rank == 0 else 0):
            thread = threading.Thread(target=may_end.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        return describe_exhaustion(error)
    finally:
        may_end.set()
        for thread in started:
            thread.join()
    return ""


def describe_exhaustion(error: BaseException) -> str:
    """Returns the limit of processes that an error has met, or an empty text."""
    frames = traceback.extract_tb(error.__traceback__)
    is_fork = bool(frames) and frames[-1].name in _FORKING
    is_thread = "can't start new thread" in str(error)
    if not is_thread and not (is_fork and isinstance(error, BlockingIOError)):
        return ""
    number, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [f"ulimit -u: {number}"] * (number != resource.RLIM_INFINITY)
    for folder in cgroups(Path("/"), "pids"):
        if (most := read(folder / "pids.max")).isdigit():
            limits.append(f"{folder}/pids.max: {most}")
    return (
        "more processes and threads must be allowed than are on this host"
        f" ({', '.join(limits)}). Raise that limit, or start fewer ranks."
    )
