"""How far a conversion is, for the person who waits for it."""

import sys
import time
from types import TracebackType

import tqdm


class Progress:
    """A bar on a terminal; elsewhere a line whenever another tenth is done.

    Attributes:
        num_done: What has been counted.
    """

    def __init__(self, total: int, unit: str) -> None:
        """Begins at 0.

        Args:
            total: What is to be done, at least 1.
            unit: What is counted, such as "images".
        """
        self._total = total
        self._unit = unit
        self.num_done = 0
        self._start_time = time.perf_counter()
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

    def add(self, count: int) -> None:
        """Counts what is done."""
        tenths_before = 10 * self.num_done // self._total
        self.num_done += count
        self._bar.update(count)
        tenths = 10 * self.num_done // self._total
        if self._bar.disable and tenths > tenths_before:
            rate = self.num_done / (time.perf_counter() - self._start_time)
            print(
                f"{10 * tenths} %: {self.num_done:,} of {self._total:,} {self._unit},"
                f" {rate:,.0f} {self._unit}/s",
                file=sys.stderr,
                flush=True,
            )
