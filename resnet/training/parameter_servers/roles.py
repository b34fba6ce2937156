"""The role of each rank of an asynchronous job."""

from dataclasses import dataclass

COORDINATOR, SERVER, WORKER = "coordinator", "ps", "worker"


@dataclass(frozen=True)
class Role:
    """What a rank does.

    Attributes:
        job: COORDINATOR, or the name of its TensorFlow job, SERVER or WORKER.
        index: Its number among the ranks of that job, from 0.
    """

    job: str
    index: int


def of_rank(rank: int, num_servers: int) -> Role:
    """Returns the role of a rank: rank 0 coordinates, the next `num_servers` serve."""
    if rank == 0:
        return Role(COORDINATOR, 0)
    if rank <= num_servers:
        return Role(SERVER, rank - 1)
    return Role(WORKER, rank - 1 - num_servers)
