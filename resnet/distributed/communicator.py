"""The ranks of a job and what they do together.

The only importer of mpi4py, which connects the ranks before TensorFlow starts and
carries Python objects and arrays. `collectives` carries tensors inside the graph.
"""

import contextlib
import hashlib
import importlib
import os
import pickle
import platform
import resource
import secrets
import select
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from resnet.base.errors import NodeError, UserError
from resnet.distributed import mpi_library
from resnet.distributed.collectives import Collectives
from resnet.hardware.placement import ProcessInfo
from resnet.watchdog import client, connections
from resnet.watchdog.alone import LoneWatchdog
from resnet.watchdog.client import WatchdogClient

# Time for the launcher to forward what was printed, which it may drop at an abort.
FORWARDING_SECONDS = 1.0
_QUOTED_CHARACTERS = 40  # Longest value that an error quotes.
_SHARED_MEMORY_BYTES = 5 << 20  # What a rank of MPICH 5 takes, rounded down.
_OTHER_OPEN_FILES = 32  # Rank 0's watchdog has 10 besides its connections.
_POLL_SECONDS = 0.01
_NOTIFICATION = 1  # Tag of the messages of `notify_rank_0`.


class AgreedError(UserError):
    """A user's mistake that all ranks know of, so that each exits by itself."""


class AgreedFailure(RuntimeError):
    """A failure that all ranks know of, such as a non-finite loss.

    `hosts` are those that a supervisor should leave out of the next start.
    """

    def __init__(self, sentence: str, hosts: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.hosts = tuple(hosts)


class Communicator:
    """One rank's connection to all ranks of its job; with one, calls are the identity.

    `collectives` are its operations on tensors inside the graph; `status` is what it
    has reported to its watchdog last.
    """

    def __init__(self, process: ProcessInfo, mpi: Any = None) -> None:
        """Callers use `connect`; `mpi` is the module `mpi4py.MPI`, None if alone."""
        self.rank = process.rank
        self.num_ranks = process.num_ranks
        self._mpi = mpi
        self._world = mpi.COMM_WORLD if mpi else None
        self.collectives = Collectives()
        self._watchdog: WatchdogClient | LoneWatchdog | None = None
        self.status: tuple[str, bool, bool] = ("starting", False, False)

    def start_watchdog(
        self,
        process: ProcessInfo,
        stall_seconds: float,
        model_dir: str | None = None,
        outlives_launcher: bool = False,
    ) -> None:
        """Starts the watchdog of this rank, as `WatchdogClient` or `LoneWatchdog`.

        Raises:
            AgreedError: On all ranks, if rank 0's host doesn't allow its watchdog a
                connection to each rank.
        """
        if self._world is None:
            self._watchdog = LoneWatchdog(stall_seconds, model_dir)
            return
        with self.collective_errors():
            if self.rank == 0:
                _check_open_files(self.num_ranks)
        token = self.broadcast(secrets.token_hex(16))
        self._watchdog = watchdog = WatchdogClient(
            process, token, stall_seconds, model_dir, outlives_launcher
        )
        endpoint = None
        if self.rank == 0:
            addresses = client.own_addresses()
            if process.has_all_ranks_on_node:
                addresses = [connections.LOOPBACK]
            endpoint = platform.node(), addresses, watchdog.port
        host, addresses, port = self.broadcast(endpoint)
        if self.rank != 0:
            watchdog.connect(host, addresses, port)

    def await_end_of_watchdog(self) -> None:
        """Returns when the watchdog of this rank has ended; never without one."""
        if isinstance(self._watchdog, WatchdogClient):
            self._watchdog.await_end()
        else:
            threading.Event().wait()

    def report_status(
        self, status: str, is_timed: bool = True, waits_for_others: bool = False
    ) -> None:
        """Reports to the watchdog what this rank does now (`WatchdogClient`)."""
        self.status = (status, is_timed, waits_for_others)
        if self._watchdog is not None:
            self._watchdog.report_status(status, is_timed, waits_for_others)

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Reports that this rank writes to a disk, which may hang, inside the block."""
        before = self.status
        self.report_status(f"writing {what}")
        yield
        self.report_status(*before)

    def report_warning(self, level: str, text: str) -> bool:
        """Has rank 0's watchdog print a warning of this rank; False without one."""
        if not isinstance(self._watchdog, WatchdogClient):
            return False
        self._watchdog.report_warning(level, text)
        return True

    def deregister(self) -> None:
        """Reports to the watchdog that this rank is done."""
        if self._watchdog is not None:
            self._watchdog.deregister()

    def start_horovod(self) -> None:
        """Starts the collective operations on tensors. Imports TensorFlow."""
        if self._world is not None:
            self.collectives.start(mpi_library.horovod_library(self._mpi))

    @contextlib.contextmanager
    def collective_errors(self) -> Iterator[None]:
        """Raises on all ranks, at the end of the block, if any rank has a UserError.

        Raises:
            AgreedError: On all ranks, with the message of the lowest rank with one.
        """
        sentence = None
        try:
            yield
        except UserError as error:
            sentence = str(error)
        failed = self._lowest_rank(sentence is not None)
        if failed is not None:
            raise AgreedError(self.broadcast(sentence, failed))

    def assert_equal_across_ranks(self, what: str, value: str) -> None:
        """Refuses to continue if ranks differ in something that they must share.

        Raises:
            AgreedError: On all ranks, naming the first rank that differs from rank 0.
        """
        is_long = len(value) > _QUOTED_CHARACTERS
        own = hashlib.sha256(value.encode()).digest() if is_long else value
        first, first_host = self.broadcast((own, platform.node()))
        rank = self._lowest_rank(own != first)
        if rank is None:
            return
        other, host = self.broadcast((own, platform.node()), rank)
        is_quoted = isinstance(other, str) and isinstance(first, str)
        quoted = f" ({other} and {first})" if is_quoted else ""
        raise AgreedError(
            f"all ranks must have the same {what}; rank {rank} on {host}"
            f" differs from rank 0 on {first_host}{quoted}. Give every host the"
            " same records, the same command and the same installation."
        )

    def any_rank(self, value: object) -> bool:
        """Returns to each rank whether the value of one of them is true."""
        return self._lowest_rank(bool(value)) is not None

    def _lowest_rank(self, holds: bool) -> int | None:
        """Returns the lowest rank for which something holds; None if for none."""
        lowest = np.array([self.rank if holds else self.num_ranks], np.int64)
        if self._world is not None:
            own = lowest.copy()
            self._world.Allreduce(own, lowest, op=self._mpi.MIN)
        return None if lowest[0] == self.num_ranks else int(lowest[0])

    def allgather(self, value: Any) -> list[Any]:
        """Returns the picklable values of all ranks, in their order, to each rank."""
        return [value] if self._world is None else self._world.allgather(value)

    def gather_objects(self, value: Any) -> list[Any] | None:
        """Returns the picklable values of all ranks to rank 0; None to others."""
        return [value] if self._world is None else self._world.gather(value, root=0)

    def allgather_on_node(self, value: Any) -> list[Any]:
        """Returns the values of the ranks of this node, in the order of local ranks."""
        if self._world is None:
            return [value]
        node = self._world.Split_type(self._mpi.COMM_TYPE_SHARED)
        try:
            return node.allgather(value)
        finally:
            node.Free()

    def alone(self) -> "Communicator":
        """Returns a communicator of this rank alone, with the watchdog of this one."""
        alone = Communicator(ProcessInfo())
        alone._watchdog = self._watchdog
        return alone

    def duplicate(self) -> "BackgroundCommunicator":
        """Returns a connection for a background thread; to be called on all ranks."""
        return BackgroundCommunicator(self._world.Dup() if self._world else None)

    def broadcast(self, value: Any, rank: int = 0) -> Any:
        """Returns the picklable value of one rank to each rank."""
        return value if self._world is None else self._world.bcast(value, root=rank)

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum over all ranks of arrays of equal shape and dtype."""
        if self._world is None:
            return values
        total = np.empty_like(values)
        self._world.Allreduce(np.ascontiguousarray(values), total)
        return total

    def alltoall(self, parts: np.ndarray) -> np.ndarray:
        """Sends a part of an array to each rank; returns what this rank receives.

        The parts are `[num_ranks, n]`, of the same length and dtype on all ranks.
        """
        if self._world is None:
            return parts
        received = np.empty_like(parts)
        self._world.Alltoall(np.ascontiguousarray(parts), received)
        return received

    def exchange(self, values: np.ndarray, partner: int) -> np.ndarray:
        """Sends an array to another rank; returns its, of the same shape and dtype."""
        if self._world is None:
            return values
        received = np.empty_like(values)
        self._world.Sendrecv(
            np.ascontiguousarray(values), partner, recvbuf=received, source=partner
        )
        return received

    def gather(self, row: np.ndarray) -> np.ndarray | None:
        """Returns the arrays of all ranks, `[num_ranks, n]`, to rank 0; None to others.

        Each is `[n]`, of the same length and dtype.
        """
        if self._world is None:
            return row[np.newaxis]
        rows = np.empty((self.num_ranks, *row.shape), row.dtype)
        self._world.Gather(row, rows if self.rank == 0 else None, root=0)
        return rows if self.rank == 0 else None

    def scatter(self, rows: np.ndarray | None) -> np.ndarray | None:
        """Returns to each rank its row of rank 0's array; None if that is None."""
        if self._world is None:
            return None if rows is None else rows[0]
        row_type = self.broadcast(
            None if rows is None else (rows.shape[1:], rows.dtype)
        )
        if row_type is None:
            return None
        row = np.empty(*row_type)
        self._world.Scatter(rows, row, root=0)
        return row

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        """Sets `tf.Variable`s to their values on rank 0, on all ranks."""
        if self._world is None:
            return
        for variable in variables:
            array = np.ascontiguousarray(variable.numpy())
            self._world.Bcast(array, root=0)
            if self.rank != 0:
                variable.assign(array)

    def allreduce_mean(self, variables: Sequence[Any]) -> None:
        """Sets float32 `tf.Variable`s to their mean over all ranks, on all ranks."""
        if self._world is None or not variables:
            return
        arrays = [variable.numpy() for variable in variables]
        mean = self.allreduce_sum(np.concatenate([array.ravel() for array in arrays]))
        mean /= self.num_ranks
        ends = np.cumsum([array.size for array in arrays])
        parts = np.split(mean, ends[:-1])
        for variable, array, part in zip(variables, arrays, parts, strict=True):
            variable.assign(part.reshape(array.shape))

    def finalize(self) -> None:
        """Ends MPI, for a process that ends without the exit hooks of Python and C.

        Hydra kills the other ranks when one ends whose MPI library has not said so.
        MPICH 5 says it in such a hook (src/util/mpir_pmi.c), others in MPI_Finalize.
        """
        if self._mpi is None:
            return
        is_hydras = {"PMI_FD", "MPI_LOCALRANKID"} <= set(os.environ)
        launcher = os.dup(int(os.environ["PMI_FD"])) if is_hydras else None
        self._mpi.Finalize()
        if launcher is not None:
            with contextlib.suppress(OSError):  # It was said before, and closed.
                os.write(launcher, b"cmd=finalize\n")
                os.read(launcher, select.PIPE_BUF)  # The answer.

    def abort(self, exit_code: int, reason: str) -> None:
        """Ends all ranks of the job at once; for a failure of this rank alone."""
        sys.stdout.flush()
        if self._watchdog is not None:
            self._watchdog.failed(reason)
        else:
            print(reason, file=sys.stderr, flush=True)
        if self._world is not None:
            time.sleep(FORWARDING_SECONDS)
            self._world.Abort(exit_code)
        sys.exit(exit_code)


class BackgroundCommunicator:
    """The connection of a background thread of one rank to those of the other ranks.

    Its messages can't be mistaken for those of the main thread. A thread that waits for
    others sleeps: MPI's blocking calls would spin and take a core from the training.
    """

    def __init__(self, mpi_communicator: Any = None) -> None:
        """Takes over an `mpi4py.MPI.Comm`; None for a process that is alone."""
        self._mpi = mpi_communicator
        self._requests: list[Any] = []  # Requests of messages that are on their way.
        self._was_notified = False
        self.rank, self.num_ranks = 0, 1
        if self._mpi is not None:
            self.rank, self.num_ranks = self._mpi.Get_rank(), self._mpi.Get_size()

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

    def allgather_within(self, seconds: float, number: int) -> list[int] | None:
        """Returns the numbers of all ranks; None if some don't call it in time.

        Afterwards, the other ranks can't be sure what this one has got.
        """
        row = np.array([number], np.int64)
        if self._mpi is None:
            return [number]
        rows = np.empty((self.num_ranks, 1), row.dtype)
        request = self._mpi.Iallgather(row, rows)
        end_at = time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > end_at:
                self._requests.append((request, row, rows))  # MPI still refers to them.
                return None
            time.sleep(_POLL_SECONDS)
        return rows[:, 0].tolist()

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


def connect(process: ProcessInfo) -> Communicator:
    """Returns this process's connection to the ranks that were started with it.

    Raises:
        UserError: If there is no MPI library that belongs to the launcher, if the
            library doesn't support MPI_THREAD_MULTIPLE, or if there is not enough
            shared memory.
    """
    if process.num_ranks == 1:
        return Communicator(process)
    _check_shared_memory(process)
    # UCX, when it is loaded, would take SIGHUP for itself: a signal to start debugging.
    os.environ.setdefault("UCX_DEBUG_SIGNO", "0")
    if process.has_all_ranks_on_node:  # It listens on these interfaces.
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    mpi_library.prepare(os.environ)
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except RuntimeError as error:  # Of mpi4py, in a line for each attempt.
        reason = str(error).splitlines()[-1]
        raise NodeError(f"the MPI library can't be loaded: {reason}.") from error
    rank, num_ranks = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    if (rank, num_ranks) != (process.rank, process.num_ranks):
        library = mpi.Get_library_version().splitlines()[0].strip()
        # Without a connection to the launcher, each process is alone.
        raise (NodeError if num_ranks == 1 else UserError)(
            f"the launcher started this process as rank {process.rank} of"
            f" {process.num_ranks}, but for the MPI library it is rank {rank} of"
            f" {num_ranks} ({library}). Use the mpirun of that library, or srun"
            " --mpi=pmi2 for MPICH and Intel MPI, --mpi=pmix for Open MPI."
        )
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise NodeError(
            "the MPI library doesn't support MPI_THREAD_MULTIPLE, which Python and"
            " Horovod need. Enable it as the library's manual says, or use a build of"
            " the library that has it."
        )
    return Communicator(process, mpi)


def abort_unconnected(environ: Mapping[str, str], exit_code: int) -> None:
    """Has Hydra end the other ranks, which would wait for this one in MPI_Init.

    Source: MPICH, src/pmi/src/pmi_v1.c, PMI_Abort: the message in its wire protocol.
    """
    if (descriptor := environ.get("PMI_FD", "")).isdigit():
        time.sleep(FORWARDING_SECONDS)
        with contextlib.suppress(OSError):  # The launcher has ended.
            os.write(int(descriptor), f"cmd=abort exitcode={exit_code}\n".encode())


def _check_shared_memory(process: ProcessInfo) -> None:
    """Refuses too small a /dev/shm or its files, of which the MPI library would die.

    Its size is checked, not its free space, so that a node's ranks come to one result.
    """
    try:
        memory = os.statvfs("/dev/shm")
    except OSError:
        return
    size = memory.f_blocks * memory.f_frsize
    needed = process.num_local_ranks * _SHARED_MEMORY_BYTES
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if resource.RLIM_INFINITY != file_bytes < needed:
        raise NodeError(
            f"a process must be allowed files of {needed / 2**20:.0f} MiB for the MPI"
            f" messages of each node's ranks, {process.num_local_ranks};"
            f" {platform.node()} allows {file_bytes / 2**20:.1f} MiB (ulimit -f)."
            " Raise that limit."
        )
    if size < needed:
        raise NodeError(
            f"/dev/shm must have at least {needed / 2**20:.0f} MiB for the MPI messages"
            f" of each node's ranks, {process.num_local_ranks}; {platform.node()} has"
            f" {size / 2**20:.0f} MiB. Enlarge it, as by --shm-size of docker run, or"
            " start fewer ranks per node."
        )


def _check_open_files(num_ranks: int) -> None:
    """Refuses a limit of open files that rank 0's watchdog would exceed."""
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_ranks + _OTHER_OPEN_FILES
    if resource.RLIM_INFINITY != allowed < needed:
        raise UserError(
            f"a process on the host of rank 0 must be allowed {needed} open files,"
            f" since its watchdog has a connection to each of the {num_ranks} ranks;"
            f" {platform.node()} allows {allowed} (ulimit -Hn). Raise that limit, or"
            " start fewer ranks."
        )
