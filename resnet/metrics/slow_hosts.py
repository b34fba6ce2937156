"""Finds hosts that compute slower than they did, or than equal ones, and says why.

All ranks wait for the slowest one. Speeds are those of computing alone, so a rank that
waits for others, or for its input, is not slow.
"""

import os
import platform
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging

from resnet.base import limits
from resnet.base.text import first_of
from resnet.distributed.communicator import Communicator
from resnet.hardware import cpu_features, slowdown
from resnet.watchdog import history

# An episode begins after so many windows below `SLOW` of the usual speed in a row, and
# ends after as many that are not below `USUAL`.
WINDOW_SECONDS = 10.0
SLOW, USUAL, IN_A_ROW = 0.8, 0.9, 2
_LEAST_PAST, _LONGEST_PAST = 3, 20  # Windows whose median is a rank's own usual speed.


class Rank(NamedTuple):
    """Where a rank computes. Ranks of a kind are expected to be equally fast."""

    host: str
    kind: Hashable
    process: int = 0


class Pace:
    """The speed of all ranks relative to their usual one, window by window."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.past: list[list[float]] = [[] for _ in ranks]
        hosts = np.array([rank.host for rank in ranks])
        kinds = [rank.kind for rank in ranks]
        numbers = np.arange(len(ranks))
        self._elsewhere = [hosts != rank.host for rank in ranks]
        self._equal = [
            np.array([kind == rank.kind for kind in kinds]) & (numbers != number)
            for number, rank in enumerate(ranks)
        ]
        self._clear_window()

    def _clear_window(self) -> None:
        self._images, self._seconds = 0, np.zeros(len(self.past))

    def forget(self) -> None:
        """Forgets past speeds; to be called where an image begins to cost otherwise."""
        self.past = [[] for _ in self.past]
        self._clear_window()

    def add(self, images: int, seconds: Sequence[float]) -> np.ndarray | None:
        """Counts images of each rank, and the seconds in which each computed them.

        Returns at the end of a window, else None: which part of its usual speed each
        rank has, `[n]`. The usual speed is the median of its own windows, as far as
        ranks of other hosts have not become slower, too, or that of ranks of its kind,
        whichever gives the smaller part.
        """
        self._images += images
        self._seconds += seconds
        if self._seconds.max() < WINDOW_SECONDS or not self._seconds.all():
            return None
        speeds = self._images / self._seconds
        self._clear_window()
        usual = np.array(
            [np.median(past) if len(past) >= _LEAST_PAST else 0 for past in self.past]
        )
        own = np.divide(speeds, usual, out=np.ones(len(speeds)), where=usual > 0)
        parts = np.empty(len(speeds))
        for rank, (elsewhere, equal) in enumerate(
            zip(self._elsewhere, self._equal, strict=True)
        ):
            parts[rank] = own[rank]
            if elsewhere.any():
                parts[rank] /= min(1.0, np.median(own[elsewhere]))
            if equal.any():
                parts[rank] = min(parts[rank], speeds[rank] / np.median(speeds[equal]))
            if parts[rank] >= SLOW:
                self.past[rank] = [*self.past[rank], speeds[rank]][-_LONGEST_PAST:]
        return parts


class Episodes:
    """Which ranks are slow, from the first to the last window of each episode."""

    def __init__(self, num_ranks: int) -> None:
        self.is_slow = np.zeros(num_ranks, bool)
        self._in_a_row = np.zeros(num_ranks, int)

    def update(self, parts: np.ndarray) -> np.ndarray:
        """Takes the parts of the usual speeds, `[n]`; returns whose state changes."""
        differs = np.where(self.is_slow, parts >= USUAL, parts < SLOW)
        self._in_a_row = np.where(differs, self._in_a_row + 1, 0)
        changed = self._in_a_row >= IN_A_ROW
        self.is_slow ^= changed
        self._in_a_row[changed] = 0
        return changed


class SlowHosts:
    """Warns of slow hosts, once an episode, and notes it in the run's history."""

    def __init__(self, communicator: Communicator, model_dir: Path) -> None:
        """To be called on all ranks."""
        self._communicator, self._model_dir = communicator, model_dir
        kind = cpu_features.model_name(), limits.usable_cpus()
        own = Rank(platform.node(), kind, os.getpid())
        self._ranks: list[Rank] = communicator.allgather(own)
        self._pace, self._episodes = Pace(self._ranks), Episodes(len(self._ranks))
        self._kernel = slowdown.Kernel()
        self._usual = slowdown.Rates()
        self._phase: object = None

    def update(
        self, step: int, phase: object, images: int, seconds: Sequence[float]
    ) -> None:
        """Takes what all ranks have computed since the last call, on all ranks.

        An image costs the same as long as the phase is the same. Rank 0 logs what
        begins and ends.
        """
        if phase is not self._phase:
            self._phase = phase
            self._pace.forget()
            return  # Some of these steps were of the phase before.
        parts = self._pace.add(images, seconds)
        if parts is None:
            return
        rates, own = self._kernel.rates(), self._communicator.rank
        if parts[own] >= SLOW:
            self._usual = rates
        changed = self._episodes.update(parts)
        if not changed.any():
            return
        why = ""
        if changed[own] and self._episodes.is_slow[own]:
            why = "; ".join(self._causes(rates)) or "the kernel tells no reason"
        reasons = self._communicator.allgather(why)
        if self._communicator.rank == 0:
            for host, ranks in self._by_host(changed):
                self._report(step, host, ranks, parts, reasons)

    def _causes(self, rates: slowdown.Rates) -> list[str]:
        host = self._ranks[self._communicator.rank].host
        job = {rank.process for rank in self._ranks if rank.host == host}
        found = slowdown.causes(rates, self._usual)
        if other := slowdown.other_process(job):
            found.append(other)
        return found

    def _by_host(self, changed: np.ndarray) -> Iterator[tuple[str, list[int]]]:
        """Yields each host whose state has changed, with the ranks that changed it.

        A host is slow as long as any of its ranks is.
        """
        ranks_of: dict[str, list[int]] = {}
        for number, rank in enumerate(self._ranks):
            ranks_of.setdefault(rank.host, []).append(number)
        is_slow, was_slow = self._episodes.is_slow, self._episodes.is_slow ^ changed
        for host, ranks in ranks_of.items():
            if is_slow[ranks].any() != was_slow[ranks].any():
                yield host, [rank for rank in ranks if changed[rank]]

    def _report(
        self,
        step: int,
        host: str,
        ranks: list[int],
        parts: np.ndarray,
        reasons: Sequence[str],
    ) -> None:
        slowest = min(ranks, key=lambda rank: parts[rank])
        part = float(parts[slowest])
        names, waits = first_of([f"rank {rank}" for rank in ranks]), ""
        if len(self._ranks) == 1:
            names = "this process"
        else:
            waits = f", and all ranks wait for {'it' if len(ranks) == 1 else 'them'}"
        computes = "computes" if len(ranks) == 1 else "compute"
        if is_slow := bool(self._episodes.is_slow[ranks].any()):
            sentence = (
                f"{names} on {host} {computes} at {100 * part:.0f} % of the usual"
                f" speed{waits}: {reasons[slowest]}"
            )
            logging.warning("%s", sentence)
        else:
            sentence = f"{names} on {host} {computes} at the usual speed again"
            logging.info("%s", sentence)
        with self._communicator.writing(history.FILE):
            history.append(
                self._model_dir,
                history.SLOW if is_slow else history.RECOVERED,
                step=step,
                host=host,
                part=round(part, 3),
                reason=sentence,
            )
