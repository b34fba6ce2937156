"""Ranks that run the same tests at the same time.

A rank whose test fails would leave the others waiting for it in a collective operation.
So the ranks compare their outcomes after each part of a test, and a rank that waits in
vain to do so prints why it failed and ends the job.
"""

import os
import sys
import time
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo

# How long a rank that failed waits for the others to come to the same place.
_PATIENCE_SECONDS = 60.0


class Lockstep:
    """What the ranks tell each other about their tests.

    It has a communicator of its own, and waits without using the CPU, which programs
    that only one rank starts need.
    """

    def __init__(self, mpi: Any) -> None:
        """Begins; `mpi` is the module `mpi4py.MPI`."""
        self._mpi = mpi
        self._world = mpi.COMM_WORLD.Dup()
        self.rank: int = self._world.Get_rank()
        self.num_ranks: int = self._world.Get_size()

    def failures(self, what: str, failure: str | None) -> list[str | None]:
        """Returns why each rank failed, None for those that didn't, to each rank.

        What has ended is the same text on all ranks.
        """
        mine = np.array([zlib.crc32(what.encode()), failure is not None], np.int64)
        seen = np.empty((self.num_ranks, 2), np.int64)
        request = self._world.Iallgather(mine, seen)
        waiting_since = time.monotonic()
        while not request.Test():
            if failure and time.monotonic() - waiting_since > _PATIENCE_SECONDS:
                self._abort(f"in {what}, where others still are:\n{failure}")
            time.sleep(0.001)
        if (seen[:, 0] != mine[0]).any():
            self._abort(f"is at {what}, others are elsewhere.\n{failure or ''}")
        if not seen[:, 1].any():
            return [None] * self.num_ranks
        return self._world.allgather(failure)

    def gather(self, value: Any) -> list[Any]:
        """Returns the picklable values of all ranks to each rank."""
        self._wait()
        return self._world.allgather(value)

    def from_rank_0(self, function: Callable[[], Any]) -> Any:
        """Returns to each rank what rank 0's call of a function returns.

        It begins when all ranks have come here, and ends on all when it is done. If it
        fails, it is an AssertionError on the other ranks.
        """
        value, error = None, None
        self._wait()
        if self.rank == 0:
            try:
                value = function()
            except Exception as raised:
                error = raised
        self._wait()
        value, sentence = self._world.bcast((value, error and repr(error)))
        if error is not None:
            raise error
        assert sentence is None, f"on rank 0: {sentence}"
        return value

    def first_ranks(self, num_ranks: int) -> Communicator | None:
        """Returns a connection among the first ranks to these, None to the others.

        To be called on all ranks. It is as in a job of so many ranks, without Horovod;
        one is a process alone.
        """
        is_in = self.rank < num_ranks
        group = self._world.Split(int(is_in), self.rank)
        if not is_in:
            return None
        if num_ranks == 1:
            return Communicator(ProcessInfo())
        process = ProcessInfo(self.rank, num_ranks, self.rank, num_ranks)
        mpi = SimpleNamespace(COMM_WORLD=group, MIN=self._mpi.MIN)
        return Communicator(process, mpi)

    def _wait(self) -> None:
        request = self._world.Ibarrier()
        while not request.Test():
            time.sleep(0.001)

    def _abort(self, text: str) -> NoReturn:
        print(f"\nrank {self.rank} {text}", file=sys.__stderr__, flush=True)
        time.sleep(1.0)  # Until the launcher has passed it on.
        self._world.Abort(1)
        os._exit(1)
