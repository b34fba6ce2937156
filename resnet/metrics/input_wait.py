"""Measures the fraction of time that the training waits for its input."""

import contextlib
import time
from collections.abc import Iterator

from absl import logging

from resnet.distributed.communicator import Communicator

WARNING_FRACTION = 0.05  # Handing over a batch that is ready takes up to 1 %.


class InputWait:
    """Measures the time in which the steps of a rank wait for their next batch.

    The other ranks wait for the slowest rank inside the step, so the largest fraction
    of all ranks is reported. Batches are prefetched, so the first batch of a run
    arrives late and the first one after a pause at once; neither is counted. Core time
    that decoding takes while a step runs is not counted either. With gradient
    accumulation, the waits for all micro-batches of a step are added up.

    Attributes:
        waited_in_last_step: The seconds that the last step waited for its input.
    """

    def __init__(self) -> None:
        self.waited_in_last_step = 0.0
        self._is_first = True
        self._step_began_at: float | None = None
        self._waited_in_step = 0.0
        self._waited = 0.0
        self._elapsed = 0.0
        self._warned_fraction = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures the time of the block, in which a micro-batch is read."""
        requested_at = time.monotonic()
        if self._step_began_at is None:
            self._step_began_at = requested_at
        yield
        self._waited_in_step += time.monotonic() - requested_at

    def step_done(self) -> float | None:
        """Counts the time since the first micro-batch of the step was requested.

        Returns:
            The seconds of the step; None if they are not counted.
        """
        seconds = None
        if not self._is_first and self._step_began_at is not None:
            seconds = time.monotonic() - self._step_began_at
            self._waited += self._waited_in_step
            self._elapsed += seconds
        self._is_first = False
        self.waited_in_last_step = self._waited_in_step
        self._step_began_at, self._waited_in_step = None, 0.0
        return seconds

    def paused(self) -> None:
        """Notes a pause between two steps, which is not counted."""
        self._is_first = True

    def report(self, communicator: Communicator) -> float:
        """Returns the largest fraction of all ranks since the last report, from 0 to 1.

        Each rank must call it. A warning is logged if the fraction exceeds 5 %, and
        again when it has doubled.
        """
        own = self._waited / self._elapsed if self._elapsed else 0.0
        self._waited = self._elapsed = 0.0
        fractions = communicator.allgather(own)
        largest = max(fractions)
        if largest > WARNING_FRACTION and largest >= 2 * self._warned_fraction:
            self._warned_fraction = largest
            logging.warning(
                "training waited for its input for %.0f %% of the time since the last"
                " line (rank %d, the slowest). To speed the input up, use more decoding"
                " threads (--num_parallel_calls), more cores per rank, a faster disk"
                " for the records or, for a small data set, --decoded_cache_mb.",
                100 * largest,
                fractions.index(largest),
            )
        return largest
