"""The staleness of gradients: a bound on it, and its distribution.

The staleness of an update is the number of updates by others between the reading of the
weights and the update.
"""

from collections import Counter


class StalenessBound:
    """Decides when a closure may start so that no update gets too stale.

    Between the reading and the update of a closure there can only be the updates of
    closures that were running when it started, or that started since. So a closure
    waits until its start would bring no running one, nor itself, above the bound. In
    particular it waits until all closures before it are done except the last
    `max_staleness`, which is the condition of stale synchronous parallel training.

    Source: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
    Parallel Parameter Server".
    """

    def __init__(self, max_staleness: int) -> None:
        """Begins without running closures.

        Args:
            max_staleness: The bound; below 0 there is none.
        """
        self._max_staleness = max_staleness
        self._largest: dict[int, int] = {}  # Possible staleness of running closures.

    def may_start(self) -> bool:
        """Returns whether another closure may start now."""
        bound = self._max_staleness
        if bound < 0:
            return True
        return len(self._largest) <= bound and all(
            largest < bound for largest in self._largest.values()
        )

    def start(self, number: int) -> None:
        """Notes that a closure starts, by its number."""
        for other in self._largest:
            self._largest[other] += 1
        self._largest[number] = len(self._largest)

    def finish(self, number: int) -> None:
        """Notes that a closure is done."""
        del self._largest[number]


class StalenessLog:
    """Counts the staleness of updates."""

    def __init__(self) -> None:
        self.histogram = Counter[int]()
        self._recent: list[int] = []

    def add(self, staleness: int) -> None:
        """Counts an update; a negative number stands for one applied before."""
        if staleness < 0:
            return
        self.histogram[staleness] += 1
        self._recent.append(staleness)

    def report(self) -> dict[str, float]:
        """Returns mean and maximum since the last report, by the metrics' names."""
        recent, self._recent = self._recent or [0], []
        return {
            "staleness_mean": sum(recent) / len(recent),
            "staleness_max": float(max(recent)),
        }

    def describe(self) -> str:
        """Returns the histogram in one line, such as `0: 374, 1: 165, 2: 1`."""
        return ", ".join(
            f"{key}: {self.histogram[key]}" for key in sorted(self.histogram)
        )
