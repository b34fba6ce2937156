"""What the kernel tells of processes, and does when a parent ends."""

import ctypes
import os

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # Loaded before a fork, after which little is safe.


def send_signal_at_parents_end(number: int, parent: int) -> None:
    """Asks the kernel to send this process a signal when its parent ends.

    A stopped process (SIGSTOP) can't notice the end of its parent. The kernel sends the
    signal nevertheless.

    Args:
        number: The number of the signal. The request persists across exec.
        parent: The process id of the parent, which may have ended already.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_process_name(name: str) -> None:
    """Sets the name of this process that ps and top show, of at most 15 characters."""
    _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def process_is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped by a signal."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def parent_of(pid: int) -> int | None:
    """Returns the process id of a process's parent, or None if there is no process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def shared_memory() -> set[str]:
    """Returns the files of /dev/shm that this process has mapped."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file}
    except OSError:
        return set()
    return {
        path
        for path in paths
        if path.startswith("/dev/shm/") and not path.endswith(" (deleted)")
    }


def oom_kills() -> int:
    """Returns how many processes the kernel has killed because memory ran out."""
    try:
        with open("/proc/vmstat") as file:
            counts = dict(line.split() for line in file)
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))
