"""An asynchronous job: each rank in its role, until rank 0 ends it."""

from collections.abc import Callable, Sequence

from resnet.base.errors import UserError
from resnet.distributed.communicator import (
    AgreedError,
    AgreedFailure,
    BackgroundCommunicator,
    Communicator,
)
from resnet.hardware.placement import Threads
from resnet.runtime.preemption import Preempted, StopSignals
from resnet.training.parameter_servers import roles, serving
from resnet.training.parameter_servers.job_end import Ending

# Of a rank: its job, its index, addresses and port of its server, and why it has none.
Endpoint = tuple[str, int, tuple[list[str], int] | None, str]
Coordinate = Callable[[Sequence[Endpoint], Communicator, "JobSignals"], None]


class JobSignals:
    """The stop requests of all ranks, as rank 0 knows them."""

    def __init__(self, own: StopSignals, background: BackgroundCommunicator) -> None:
        """Begins without a request.

        Args:
            own: The stop requests of rank 0.
            background: The connection by which other ranks notify it of theirs.
        """
        self._own = own
        self._background = background

    @property
    def seen(self) -> str:
        """A description of the first request; empty before."""
        if self._own.seen:
            return self._own.seen
        return "a signal to another rank" if self._background.was_notified() else ""


def run(
    num_servers: int,
    threads: Threads,
    communicator: Communicator,
    stall_seconds: float,
    signals: StopSignals,
    coordinate: Coordinate,
) -> None:
    """Runs this rank's part of the job.

    Args:
        num_servers: The number of parameter servers.
        threads: The threads of this rank.
        communicator: The ranks.
        stall_seconds: The time in seconds after which a silent child counts as lost.
        signals: The stop requests of this rank.
        coordinate: What rank 0 does, from the endpoints of all ranks, a communicator of
            rank 0 alone, and the stop requests of all ranks.

    Raises:
        AgreedError, AgreedFailure, Preempted: On all ranks, as rank 0 raises it.
    """
    role = roles.of_rank(communicator.rank, num_servers)
    if role.job != roles.COORDINATOR:
        serving.serve(role, threads, communicator, stall_seconds, signals)
        return
    endpoints = communicator.allgather((role.job, role.index, None, ""))
    background = communicator.duplicate()
    try:
        coordinate(endpoints, communicator.alone(), JobSignals(signals, background))
    except (AgreedFailure, Preempted) as error:
        background.allgather(Ending.of(error))
        raise
    except UserError as error:
        agreed = AgreedError(str(error))
        background.allgather(Ending.of(agreed))
        raise agreed from error
    background.allgather(Ending())
