"""Progress of a conversion or verification on standard error."""

import sys
import time
from types import TracebackType

import tqdm


class Progress:
    """A tqdm bar on a terminal; elsewhere one line per tenth of the work.

    Attributes:
        num_done: Number of units done so far.
    """

    def __init__(self, total: int, unit: str) -> None:
        """Starts at 0 units.

        Args:
            total: Total number of units, at least 1.
            unit: Name of the unit, such as "images".
        """
        self._total = total
        self._unit = unit
        self.num_done = 0
        self.start_rate()
        self._bar = tqdm.tqdm(
            total=total, unit=f" {unit}", disable=not sys.stderr.isatty()
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def start_rate(self) -> None:
        """Leaves what was done so far, and its time, out of the rate."""
        self._num_before = self.num_done
        self._start_time = time.perf_counter()

    def rate(self) -> float:
        """Returns the number of units per second since the rate was started."""
        seconds = time.perf_counter() - self._start_time
        return (self.num_done - self._num_before) / seconds

    def add(self, count: int) -> None:
        """Adds `count` units to the units done."""
        tenths_before = 10 * self.num_done // self._total
        self.num_done += count
        self._bar.update(count)
        tenths = 10 * self.num_done // self._total
        if self._bar.disable and tenths > tenths_before:
            print(
                f"{10 * tenths} %: {self.num_done:,} of {self._total:,} {self._unit},"
                f" {self.rate():,.0f} {self._unit} per second",
                file=sys.stderr,
                flush=True,
            )
