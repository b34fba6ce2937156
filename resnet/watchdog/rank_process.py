"""The process that a watchdog watches: what it is seen to do, and its end."""

import argparse
import contextlib
import os
import shutil
import signal

from resnet.watchdog.proc import oom_kills, parent_of, process_is_stopped


class RankProcess:
    """The process of the rank beside which a watchdog runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Takes over what the arguments of the watchdog say of the rank."""
        self._args = args
        self._oom_kills = [oom_kills()] * 2  # One and two ticks ago.

    def tick(self) -> None:
        """Has to be called at regular times."""
        self._oom_kills = [oom_kills(), self._oom_kills[0]]

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by a signal."""
        return process_is_stopped(self._args.pid)

    @property
    def is_orphaned(self) -> bool:
        """Whether the process of the launcher that started it has died."""
        return parent_of(self._args.pid) not in (self._args.launcher, None)

    @property
    def reason_of_death(self) -> str:
        """Why it has died, as far as the kernel says so."""
        if oom_kills() > self._oom_kills[1]:
            return "the kernel of this host ran out of memory and killed it"
        return "it was killed, or crashed"

    def kill(self) -> None:
        """Kills it, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._args.pid, signal.SIGKILL)

    def remove_leftovers(self) -> None:
        """Removes what it leaves behind if it is killed.

        That is the shared memory of the MPI library and the temporary files of Python,
        which both remove at a regular end only.
        """
        for path in self._args.shared_memory:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._args.scratch_dir:
            shutil.rmtree(self._args.scratch_dir, ignore_errors=True)
