"""The ranks of a job and what they do together.

The only importer of mpi4py, which connects the ranks before TensorFlow starts and
carries Python objects and arrays. `collectives` carries tensors inside the graph.
"""

import contextlib
import importlib
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data_prep.errors import UserError
from resnet import guard_link
from resnet.collectives import Collectives
from resnet.guard_link import GuardLink
from resnet.placement import Place

# What a launcher needs to pass on what was printed: after an abort it may drop it.
_FORWARDING_SECONDS = 1.0
_SHORT = 40  # Characters of what a sentence can quote.


class AgreedError(UserError):
    """A user's mistake that all ranks know of, so that each can end by itself."""


class AgreedFailure(RuntimeError):
    """What ends a run and all ranks know of, such as a loss that is no number."""


class Communicator:
    """One rank's connection to all ranks of its job; alone, every call is the identity.

    Attributes:
        rank: This rank, from 0.
        num_ranks: All ranks.
        collectives: What the ranks do together with tensors inside the graph.
    """

    def __init__(self, place: Place, mpi: Any = None) -> None:
        """Makes the connection; `connect` is what others call.

        Args:
            place: This rank's place.
            mpi: The module `mpi4py.MPI`, or None for a process that is alone.
        """
        self.rank = place.rank
        self.num_ranks = place.num_ranks
        self._mpi = mpi
        self._world = mpi.COMM_WORLD if mpi else None
        self.collectives = Collectives()
        self._guard: GuardLink | None = None

    def start_guard(
        self, place: Place, stall_seconds: float, model_dir: str | None = None
    ) -> None:
        """Starts what ends the job if a rank can't go on; alone, there is no need.

        Args:
            place: This rank's place.
            stall_seconds: How long a rank may stand still.
            model_dir: Where rank 0's guard writes a failure down; None: nowhere.
        """
        if self._world is None:
            return
        token = self.broadcast(guard_link.new_token())
        self._guard = GuardLink(place, token, stall_seconds, model_dir)
        listens = None
        if self.rank == 0:
            listens = platform.node(), guard_link.own_addresses(), self._guard.port
        host, addresses, port = self.broadcast(listens)
        if self.rank != 0:
            self._guard.connect(host, addresses, port)

    def doing(
        self, what: str, is_timed: bool = True, waits_for_others: bool = False
    ) -> None:
        """Says what this rank does now, for the sentence that would end the job.

        Args:
            what: Such as "reading the batch of step 12".
            is_timed: Whether it must end within the time set.
            waits_for_others: Whether that needs all ranks.
        """
        if self._guard is not None:
            self._guard.doing(what, is_timed, waits_for_others)

    def bye(self) -> None:
        """Says that this rank ends as it should."""
        if self._guard is not None:
            self._guard.bye()

    def start_horovod(self) -> None:
        """Starts the collective operations on tensors. Imports TensorFlow."""
        if self._world is not None:
            self.collectives.start()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Makes a UserError of any rank inside the block one of all ranks at its end.

        Raises:
            AgreedError: With the sentence of the lowest rank that has one.
        """
        sentence = None
        try:
            yield
        except UserError as error:
            sentence = str(error)
        sentences = [one for one in self.gather(sentence) if one is not None]
        if sentences:
            raise AgreedError(sentences[0])

    def require_same(self, what: str, value: str) -> None:
        """Refuses to go on if ranks differ in something that they must share.

        Raises:
            AgreedError: On all ranks, naming the first rank that differs from rank 0.
        """
        seen = self.gather((value, platform.node()))
        for rank, (one, host) in enumerate(seen):
            if one != seen[0][0]:
                first, first_host = seen[0]
                is_short = max(len(one), len(first)) <= _SHORT
                values = f" ({one}, there {first})" if is_short else ""
                raise AgreedError(
                    f"all ranks must have the same {what}; rank {rank} on {host} has"
                    f" another than rank 0 on {first_host}{values}. Give every host the"
                    " same records, the same command and the same installation."
                )

    def gather(self, value: Any) -> list[Any]:
        """Returns the picklable values of all ranks, in their order, to each rank."""
        return [value] if self._world is None else self._world.allgather(value)

    def gather_on_node(self, value: Any) -> list[Any]:
        """Returns the values of the ranks of this node, in the order of local ranks."""
        if self._world is None:
            return [value]
        node = self._world.Split_type(self._mpi.COMM_TYPE_SHARED)
        try:
            return node.allgather(value)
        finally:
            node.Free()

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's picklable value to each rank."""
        return value if self._world is None else self._world.bcast(value, root=0)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum over all ranks of equally shaped arrays, to each rank."""
        if self._world is None:
            return values
        total = np.empty_like(values)
        self._world.Allreduce(np.ascontiguousarray(values), total)
        return total

    def gather_rows(self, row: np.ndarray) -> np.ndarray | None:
        """Returns equally long arrays of all ranks, `[num_ranks, n]`, to rank 0."""
        if self._world is None:
            return row[np.newaxis]
        rows = np.empty((self.num_ranks, *row.shape), row.dtype)
        self._world.Gather(row, rows if self.rank == 0 else None, root=0)
        return rows if self.rank == 0 else None

    def scatter_rows(self, rows: np.ndarray | None) -> np.ndarray | None:
        """Returns to each rank its row of rank 0's array; None if rank 0 has None."""
        form = self.broadcast(None if rows is None else (rows.shape[1:], rows.dtype))
        if form is None or self._world is None:
            return None if rows is None else rows[0]
        row = np.empty(*form)
        self._world.Scatter(rows, row, root=0)
        return row

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        """Gives each rank rank 0's values of these `tf.Variable`s."""
        if self._world is None:
            return
        for variable in variables:
            array = np.ascontiguousarray(variable.numpy())
            self._world.Bcast(array, root=0)
            if self.rank != 0:
                variable.assign(array)

    def average_variables(self, variables: Sequence[Any]) -> None:
        """Gives each rank the mean over ranks of these float32 `tf.Variable`s."""
        if self._world is None or not variables:
            return
        arrays = [variable.numpy() for variable in variables]
        mean = self.sum(np.concatenate([array.ravel() for array in arrays]))
        mean /= self.num_ranks
        ends = np.cumsum([array.size for array in arrays])
        parts = np.split(mean, ends[:-1])
        for variable, array, part in zip(variables, arrays, parts, strict=True):
            variable.assign(part.reshape(array.shape))

    def abort(self, exit_code: int, reason: str) -> None:
        """Ends all ranks of the job at once, for a fault only this one knows of.

        Args:
            exit_code: Of the job, if the launcher passes it on.
            reason: What is printed: a sentence or a traceback.
        """
        sys.stdout.flush()
        if self._guard is not None:
            self._guard.failed(reason)
        else:
            print(reason, file=sys.stderr, flush=True)
        if self._world is not None:
            time.sleep(_FORWARDING_SECONDS)
            self._world.Abort(exit_code)
        sys.exit(exit_code)


def connect(place: Place) -> Communicator:
    """Returns this process's connection to the ranks that were started with it.

    Raises:
        UserError: If the launcher and the MPI library don't belong to each other.
    """
    if place.num_ranks == 1:
        return Communicator(place)
    mpi = importlib.import_module("mpi4py.MPI")
    seen = (mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size())
    if seen != (place.rank, place.num_ranks):
        library = mpi.Get_library_version().splitlines()[0].strip()
        raise UserError(
            f"for the launcher this is rank {place.rank} of {place.num_ranks}, for the"
            f" MPI library rank {seen[0]} of {seen[1]} ({library}). Start with the"
            " mpirun of that library."
        )
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise UserError(
            "the MPI library must let several threads call it (MPI_THREAD_MULTIPLE), as"
            " Python and Horovod do; it doesn't. Its manual names the setting."
        )
    return Communicator(place, mpi)
