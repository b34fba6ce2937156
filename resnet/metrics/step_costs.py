"""Measures what the steps cost: waiting for input, the exchange, and computing."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount
from resnet.metrics.table import RANK_SPEEDS, SERIES

WARNING_FRACTION = 0.05  # Handing over a batch that is ready takes up to 1 %.


class StepCosts:
    """Sums up what the steps between two log lines cost.

    Batches are prefetched, so the first batch of a run arrives late and the first one
    after a pause at once: the time of these steps is not counted. The waits for all
    micro-batches of a step are added up.

    `num_images` and `seconds` say what the steps of the last report were: the images of
    each rank, and the seconds in which each rank computed them.
    """

    def __init__(self, communicator: Communicator, local_batch_size: int) -> None:
        self._communicator = communicator
        self._local_batch_size = local_batch_size
        self._logs_dense = communicator.rank == 0
        self._warned_fraction = 0.0
        self._is_first = True
        self._step_began_at: float | None = None
        self._waited_in_step = self._apart_in_step = 0.0
        self.num_images = 0
        self.seconds: Sequence[float] = [0.0] * communicator.num_ranks
        self._reset()

    def _reset(self) -> None:
        self._accounts: list[ExchangeAccount] = []
        # Of the steps whose time counts:
        self._num_timed = 0
        self._seconds = self._waited = self._exposed = self._apart = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures the time of the block, in which a micro-batch is read."""
        requested_at = time.monotonic()
        if self._step_began_at is None:
            self._step_began_at = requested_at
        yield
        self._waited_in_step += time.monotonic() - requested_at

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Measures the time of the block, which is no part of computing the step."""
        began_at = time.monotonic()
        yield
        self._apart_in_step += time.monotonic() - began_at

    def paused(self) -> None:
        """Notes a pause between two steps, which is not counted."""
        self._is_first = True

    def step_done(self, account: ExchangeAccount) -> None:
        """Counts a step, from the request of its first micro-batch."""
        if self._logs_dense and account.num_dense:
            self._logs_dense = False
            text = "Vectors of compressed gradients that are sent dense, since their"
            logging.info(f"{text} code is longer (logged once): %d", account.num_dense)
        self._accounts.append(account)
        if not self._is_first and self._step_began_at is not None:
            self._num_timed += 1
            self._seconds += time.monotonic() - self._step_began_at
            self._waited += self._waited_in_step
            self._exposed += account.exposed_seconds
            self._apart += self._apart_in_step
        self._is_first = False
        self._step_began_at = None
        self._waited_in_step = self._apart_in_step = 0.0

    def report(self) -> dict[str, Any]:
        """Returns the metrics since the last report, by their names; on each rank.

        The fraction of waiting for input is the largest, for which the others wait
        inside the step. The speed of each of several ranks, in images per second,
        leaves out the time in which it waits; it is 0 without a timed step.
        """
        computed = self._seconds - self._waited - self._exposed - self._apart
        total = self._seconds or math.inf
        own = self._waited / total, max(computed, 0.0)
        waits, self.seconds = zip(*self._communicator.allgather(own), strict=True)
        self.num_images = self._num_timed * self._local_batch_size
        self._warn(waits)
        accounts = self._accounts
        numbers: dict[str, Any] = {"input_wait_share": max(waits)}
        numbers["exchange_share"] = float(self._exposed / total)
        for name, series in SERIES.items():
            if exchange := series.exchange:
                values = [getattr(account, exchange.number) for account in accounts]
                if values := [value for value in values if not math.isnan(value)]:
                    mean = math.fsum(values) / len(values)
                    numbers[name] = round(mean) if exchange.is_whole else mean
        if len(self.seconds) > 1:
            speeds = [
                self.num_images / seconds if seconds else 0.0
                for seconds in self.seconds
            ]
            numbers[RANK_SPEEDS] = [float(f"{speed:.4g}") for speed in speeds]
        self._reset()
        return numbers

    def _warn(self, waits: tuple[float, ...]) -> None:
        """Warns of more than 5 %, and again when that has doubled."""
        largest = max(waits)
        if largest > WARNING_FRACTION and largest >= 2 * self._warned_fraction:
            self._warned_fraction = largest
            logging.warning(
                "training waited for its input for %.0f %% of the time since the last"
                " line (rank %d, the slowest). More cores, --num_parallel_calls, a"
                " faster disk or --decoded_cache_mb speed it up.",
                100 * largest,
                waits.index(largest),
            )
