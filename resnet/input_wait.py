"""How much of its time the training waits for its input."""

import contextlib
import time
from collections.abc import Iterator

from absl import logging

from resnet.distributed import Communicator

WORTH_A_WARNING = 0.05  # Share; handing over a batch that is ready takes up to 1 %.


class InputWait:
    """The time in which a rank's steps could not begin for want of a batch.

    The other ranks wait for the slowest one inside the step, so the rank that waits
    most for its batches is the one that counts. Batches are made ready ahead: the first
    one at the start comes late, the first one behind a pause at once; neither counts.
    What decoding takes from the cores while a step runs is not waiting.
    """

    def __init__(self) -> None:
        self._is_first = True
        self._asked_at = 0.0
        self._came_at = 0.0
        self._waited = 0.0
        self._elapsed = 0.0
        self._warned_of = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Begins a step; its batch comes in the block."""
        self._asked_at = time.monotonic()
        yield
        self._came_at = time.monotonic()

    def step_done(self) -> None:
        """Ends the step."""
        if not self._is_first:
            self._waited += self._came_at - self._asked_at
            self._elapsed += time.monotonic() - self._asked_at
        self._is_first = False

    def paused(self) -> None:
        """Says that something else than steps has taken its time."""
        self._is_first = True

    def report(self, communicator: Communicator) -> float:
        """Returns the share since the last report, of the rank that waited most.

        Warns if it is more than 5 %; again only of twice as much. To be called by all
        ranks.
        """
        own = self._waited / self._elapsed if self._elapsed else 0.0
        self._waited = self._elapsed = 0.0
        shares = communicator.gather(own)
        largest = max(shares)
        if largest > WORTH_A_WARNING and largest >= 2 * self._warned_of:
            self._warned_of = largest
            logging.warning(
                "the training waited for its input in %.0f %% of the time since the"
                " last line (on rank %d, which waits most): more threads that decode"
                " (--num_parallel_calls), more cores a rank, a faster disk for the"
                " records or, for a small set, --decoded_cache_mb would help",
                100 * largest,
                shares.index(largest),
            )
        return largest
