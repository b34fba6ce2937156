"""Ranks of a job that are threads of this process, and the bytes that each receives."""

import concurrent.futures
import pickle
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from resnet.base.errors import UserError
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo

_WAIT_SECONDS = 60.0
Call = Callable[[Communicator, ProcessInfo], Any]


class World:
    """What stands for MPI's `COMM_WORLD`: one object for each rank.

    `received_bytes` are those that this rank has received from others, as a tree of
    messages would bring them: the result of a reduction once.
    """

    def __init__(
        self,
        rank: int,
        turn: threading.Lock,
        barrier: threading.Barrier,
        values: list[Any],
    ):
        self.received_bytes = 0
        self._rank, self._values = rank, values
        self._turn, self._barrier = turn, barrier

    def _exchange(self, value: Any, receives: bool = False) -> list[Any]:
        self._values[self._rank] = value
        self._wait_for_others()
        values = list(self._values)
        self._wait_for_others()
        if receives:
            others = values[: self._rank] + values[self._rank + 1 :]
            self.received_bytes += sum(len(pickle.dumps(other)) for other in others)
        return values

    def _wait_for_others(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait(_WAIT_SECONDS)
        finally:
            self._turn.acquire()

    def allgather(self, value: Any) -> list[Any]:
        return self._exchange(value, receives=True)

    def gather(self, value: Any, root: int) -> list[Any] | None:
        values = self._exchange(value, receives=self._rank == root)
        return values if self._rank == root else None

    def bcast(self, value: Any, root: int) -> Any:
        value = self._exchange(value)[root]
        if self._rank != root:
            self.received_bytes += len(pickle.dumps(value))
        return value

    def Allreduce(self, own: Any, result: Any, op: Any = np.add) -> None:
        values = self._exchange(own.copy())
        result[...] = op.reduce(values)
        self.received_bytes += result.nbytes


def on_all_ranks(call: Call, num_ranks: int) -> tuple[list[Any], list[int]]:
    """Calls a function on each of some ranks; two ranks are on each node.

    One rank computes at a time, until it waits for the others: several threads at once
    can't parse literals, as np.load does, in Python 3.11 ("AST constructor recursion
    depth mismatch").

    Returns what it returns on each rank, or the UserError that it raises there, and the
    bytes that each rank has received.
    """
    barrier, values = threading.Barrier(num_ranks), [None] * num_ranks
    turn = threading.Lock()
    worlds = [World(rank, turn, barrier, values) for rank in range(num_ranks)]

    def run(rank: int) -> Any:
        place = ProcessInfo(rank, num_ranks, rank % 2, 2)
        mpi = SimpleNamespace(COMM_WORLD=worlds[rank], MIN=np.minimum)
        try:
            with turn:
                return call(Communicator(place, mpi), place)
        except UserError as error:
            return error
        except threading.BrokenBarrierError:
            return None  # Another rank has failed.
        except BaseException:
            barrier.abort()  # The others would wait for this rank.
            raise

    with concurrent.futures.ThreadPoolExecutor(num_ranks) as threads:
        results = list(threads.map(run, range(num_ranks)))
    return results, [world.received_bytes for world in worlds]
