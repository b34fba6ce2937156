"""The settings of asynchronous training, and what they exclude."""

from dataclasses import dataclass

from resnet.config.settings import LARGEST_COUNT, setting

SYNC_MODES = ("bsp", "async")
STALENESS_RATES = ("none", "inverse")
NO_BOUND = -1


@dataclass(frozen=True, kw_only=True)
class AsyncSettings:
    """Whether workers wait for each other, and what becomes of stale gradients.

    Source: dmlc/mxnet, example/distributed-training of 2015, for the two modes.
    """

    sync_mode: str = setting(
        "bsp",
        "The mode of synchronization, one of {names}: with bsp (bulk synchronous"
        " parallel) each update is by the mean gradient of all ranks, with async each"
        " worker updates the weights on parameter servers by itself.",
        names=SYNC_MODES,
    )
    max_staleness: int = setting(
        NO_BOUND,
        "With --sync_mode=async, the most updates by others between reading the weights"
        " and updating them (stale synchronous parallel); 0 is one worker at a time, -1"
        " no bound.",
        bounds=(NO_BOUND, LARGEST_COUNT),
    )
    staleness_rate: str = setting(
        "none",
        "With --sync_mode=async, how the learning rate depends on the staleness of a"
        " gradient, one of {names}: not at all, or divided by it where it is above 1.",
        names=STALENESS_RATES,
    )

    @property
    def is_async(self) -> bool:
        """Whether the run trains asynchronously."""
        return self.sync_mode == "async"
