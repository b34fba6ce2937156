"""The role of each rank of an asynchronous job."""

from dataclasses import dataclass

from data_prep.errors import UserError

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


def num_workers(num_ranks: int, num_servers: int) -> int:
    """Returns the number of workers of a job.

    Raises:
        UserError: If no rank is left for a worker.
    """
    workers = num_ranks - 1 - num_servers
    if workers < 1:
        raise UserError(
            "--sync_mode=async needs one rank that coordinates, --num_ps ranks that"
            f" serve and at least one that works; got {num_ranks} rank(s) with"
            f" --num_ps={num_servers}. Start at least {num_servers + 2} ranks, as by"
            f" mpirun -np {num_servers + 2}."
        )
    return workers


def of_rank(rank: int, num_servers: int) -> Role:
    """Returns the role of a rank: rank 0 coordinates, the next `num_servers` serve."""
    if rank == 0:
        return Role(COORDINATOR, 0)
    if rank <= num_servers:
        return Role(SERVER, rank - 1)
    return Role(WORKER, rank - 1 - num_servers)
