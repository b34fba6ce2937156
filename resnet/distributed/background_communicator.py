"""Communication between the background threads of all ranks."""

import pickle
import time
from typing import Any

import numpy as np

_POLL_SECONDS = 0.01
_NOTIFICATION = 1  # Tag of the messages of `notify_rank_0`.


class BackgroundCommunicator:
    """The connection of a background thread of one rank to those of the other ranks.

    It uses an MPI communicator of its own, so that its messages can't be mistaken for
    those of the main thread. A thread that waits for other ranks sleeps: MPI's blocking
    calls would spin and take a core from the training.

    Attributes:
        rank: This rank, from 0.
        num_ranks: Number of ranks.
    """

    def __init__(self, mpi_communicator: Any = None) -> None:
        """Takes over a communicator that nobody else uses.

        Args:
            mpi_communicator: An `mpi4py.MPI.Comm`, or None for a process that is alone.
        """
        self._mpi = mpi_communicator
        self._requests: list[Any] = []  # Requests of messages that are on their way.
        self._was_notified = False
        self.rank = 0 if self._mpi is None else self._mpi.Get_rank()
        self.num_ranks = 1 if self._mpi is None else self._mpi.Get_size()

    def allgather(self, value: Any) -> list[Any]:
        """Returns the picklable values of all ranks, in their order, to each rank."""
        if self._mpi is None:
            return [value]
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = self._allgather_rows(np.array([data.size], np.int64))[:, 0]
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: data.size] = data
        rows = self._allgather_rows(padded)
        return [
            pickle.loads(row[:size].tobytes())
            for row, size in zip(rows, sizes, strict=True)
        ]

    def notify_rank_0(self) -> None:
        """Sends rank 0 a message without content, and doesn't wait for it."""
        self._requests.append(self._mpi.isend(None, dest=0, tag=_NOTIFICATION))

    def was_notified(self) -> bool:
        """Returns whether another rank has notified this one, rank 0, so far."""
        while self._mpi is not None and self._mpi.iprobe(tag=_NOTIFICATION):
            self._mpi.recv(tag=_NOTIFICATION)
            self._was_notified = True
        return self._was_notified

    def _allgather_rows(self, row: np.ndarray) -> np.ndarray:
        rows = np.empty((self.num_ranks, *row.shape), row.dtype)
        request = self._mpi.Iallgather(row, rows)
        while not request.Test():
            time.sleep(_POLL_SECONDS)
        return rows
