"""What the kernel tells of processes, and the process that a watchdog monitors."""

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
from pathlib import Path

from resnet.base import limits

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # Loaded before a fork, after which little is safe.


def send_signal_at_parents_end(number: int, parent: int) -> None:
    """Asks the kernel to send this process a signal when its parent ends.

    It sends it also to a stopped process (SIGSTOP), and after an exec. The parent, by
    its process id, may have ended already.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_process_name(name: str) -> None:
    """Sets the name of this process that ps and top show, of at most 15 characters."""
    _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def parent_of(pid: int) -> int | None:
    """Returns the process id of a process's parent, or None if there is no process."""
    stat = _stat(pid)
    return int(stat[1]) if stat else None


def _stat(pid: int) -> list[str]:
    """Returns the state of a process, its parent, and so on; none without a process."""
    return limits.read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def shared_memory() -> set[str]:
    """Returns the files of /dev/shm that this process has mapped."""
    lines = limits.read(Path("/proc/self/maps")).splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return {
        path
        for path in paths
        if path.startswith("/dev/shm/") and not path.endswith(" (deleted)")
    }


def oom_kills() -> int:
    """Returns how many processes the kernel has killed because memory ran out."""
    lines = limits.read(Path("/proc/vmstat")).splitlines()
    counts = dict(line.split() for line in lines)
    return int(counts.get("oom_kill", 0))


class RankProcess:
    """The process of the rank beside which a watchdog runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._launcher: int | None = args.parent
        if args.outlives_launcher:  # The parent is the rank wrapper.
            self._launcher = parent_of(args.parent)
        self._orphaned_ticks = 0
        self._oom_kills = [oom_kills()] * 2  # One and two ticks ago.

    def tick(self) -> None:
        """Updates the counters; to be called at regular intervals."""
        self._oom_kills = [oom_kills(), self._oom_kills[0]]
        self._orphaned_ticks += self.is_orphaned

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by a signal."""
        return _stat(self._args.pid)[:1] in (["T"], ["t"])

    @property
    def is_orphaned(self) -> bool:
        """Whether its parent has died: the launcher's process, or its rank wrapper."""
        return parent_of(self._args.pid) not in (self._args.parent, None)

    @property
    def is_lost(self) -> bool:
        """Whether it is orphaned and doesn't end by itself."""
        return self.is_orphaned and not self._args.outlives_launcher

    @property
    def has_outlived_launcher(self) -> bool:
        """Whether it was orphaned at two ticks, and ends by itself.

        A launcher that ends for a failure kills the rank by the second tick.
        """
        return self._args.outlives_launcher and self._orphaned_ticks > 1

    @property
    def reason_of_orphanhood(self) -> str:
        """The reason why it is orphaned, as a sentence without its full stop."""
        wrapper = f", or its child {self._args.parent}," * self._args.outlives_launcher
        return (
            f"the launcher's process {self._launcher} on {self._args.host}, which"
            f" started rank {self._args.rank}{wrapper or ','} has died"
        )

    @property
    def reason_of_death(self) -> str:
        """The reason why it has died, as far as the kernel reports it."""
        if oom_kills() > self._oom_kills[1]:
            return "the kernel of this host ran out of memory and killed it"
        return "it was killed, or crashed"

    def kill(self) -> None:
        """Kills it, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._args.pid, signal.SIGKILL)

    def remove_leftovers(self) -> None:
        """Removes the shared memory and temporary files of a rank that was killed."""
        for path in self._args.shared_memory:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._args.scratch_dir:
            shutil.rmtree(self._args.scratch_dir, ignore_errors=True)
