"""The role of each rank of an asynchronous job."""

from dataclasses import dataclass
from typing import NamedTuple

COORDINATOR = "coordinator"
SERVER, WORKER = "ps", "worker"  # The names of TensorFlow's jobs.


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens: its rank's role, its host's IPv4 addresses, and its port.

    It answers only those who send its `secret`.
    """

    job: str
    index: int
    addresses: list[str]
    port: int
    secret: bytes


@dataclass(frozen=True)
class Role:
    """What a rank does: its job, and its number among the ranks of that job, from 0."""

    job: str
    index: int


class Workers(NamedTuple):
    """The workers of a job.

    Each decodes `num_parallel_calls` images in parallel; one that is silent for
    `stall_seconds` is lost.
    """

    num_workers: int
    num_parallel_calls: int
    stall_seconds: float


def of_rank(rank: int, num_servers: int) -> Role:
    """Returns the role of a rank: rank 0 coordinates, the next `num_servers` serve."""
    if rank == 0:
        return Role(COORDINATOR, 0)
    if rank <= num_servers:
        return Role(SERVER, rank - 1)
    return Role(WORKER, rank - 1 - num_servers)
