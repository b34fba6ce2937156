"""The role of each rank of an asynchronous job, and how rank 0 ends it."""

from dataclasses import dataclass

from resnet.distributed.communicator import AgreedError, AgreedFailure
from resnet.runtime.preemption import Preempted

COORDINATOR, SERVER, WORKER = "coordinator", "ps", "worker"
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (AgreedError, AgreedFailure, Preempted)
}


# Of a rank: its job, its index, addresses and port of its server, and why it has none.
Endpoint = tuple[str, int, tuple[list[str], int] | None, str]


@dataclass(frozen=True)
class Role:
    """What a rank does.

    Attributes:
        job: COORDINATOR, or the name of its TensorFlow job, SERVER or WORKER.
        index: Its number among the ranks of that job, from 0.
    """

    job: str
    index: int


@dataclass(frozen=True)
class Workers:
    """The workers of a job.

    Attributes:
        count: Their number.
        num_parallel_calls: The number of images that a worker decodes in parallel.
        stall_seconds: The time in seconds after which a silent worker is lost.
    """

    count: int
    num_parallel_calls: int
    stall_seconds: float


def of_rank(rank: int, num_servers: int) -> Role:
    """Returns the role of a rank: rank 0 coordinates, the next `num_servers` serve."""
    if rank == 0:
        return Role(COORDINATOR, 0)
    if rank <= num_servers:
        return Role(SERVER, rank - 1)
    return Role(WORKER, rank - 1 - num_servers)


@dataclass(frozen=True)
class Ending:
    """The end of a job.

    Attributes:
        kind: The name of the exception that all ranks raise; empty if training is done.
        sentence: Its message.
    """

    kind: str = ""
    sentence: str = ""

    @classmethod
    def of(cls, error: Exception) -> "Ending":
        """Returns the ending by an exception that all ranks are to raise."""
        kind = next(name for name, known in _KINDS.items() if isinstance(error, known))
        return cls(kind, str(error))

    def raise_on_rank(self) -> None:
        """Raises the exception, if there is one."""
        if self.kind:
            raise _KINDS[self.kind](self.sentence)
