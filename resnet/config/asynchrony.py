"""The settings of asynchronous training, and what they exclude."""

from dataclasses import dataclass
from typing import ClassVar

from resnet.base.errors import UserError
from resnet.base.settings import LARGEST_COUNT, setting
from resnet.config import topics

SYNC_MODES = ("bsp", "async")
STALENESS_RATES = ("none", "inverse")
NO_BOUND = -1


@dataclass(frozen=True, kw_only=True)
class AsyncSettings:
    """Whether workers wait for each other, and what becomes of stale gradients.

    Source: dmlc/mxnet, example/distributed-training of 2015, for the two modes.
    """

    TOPIC: ClassVar[str] = topics.ASYNC

    sync_mode: str = setting(
        "bsp",
        "The mode of synchronization, one of {names}: with bsp (bulk synchronous"
        " parallel) each update is by the mean gradient of all ranks, with async each"
        " worker updates the weights on parameter servers by itself.",
        names=SYNC_MODES,
        common=True,
    )
    max_staleness: int = setting(
        NO_BOUND,
        "With --sync_mode=async, the bound of the staleness, which is the number of"
        " updates by others between a worker's read and its update (stale synchronous"
        " parallel); 0 is one worker at a time, -1 no bound.",
        bounds=(NO_BOUND, LARGEST_COUNT),
    )
    staleness_rate: str = setting(
        "none",
        "With --sync_mode=async, how the staleness of a gradient scales its learning"
        " rate, one of {names}: not at all, or by 1 / staleness where that is above 1.",
        names=STALENESS_RATES,
    )

    @property
    def is_async(self) -> bool:
        """Whether the run trains asynchronously."""
        return self.sync_mode == "async"


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
