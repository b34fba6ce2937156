"""Waits for the checkpoints of a run that another job writes."""

import time
from collections.abc import Callable
from pathlib import Path

from absl import logging

from resnet.checkpoint import step_dirs
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.runtime.preemption import Preempted, StopSignals

POLL_SECONDS = 2.0


class CheckpointWatch:
    """The checkpoints of a run in the order of their steps, as they appear.

    Rank 0 lists the folder, and all ranks get the same step.
    """

    def __init__(
        self,
        model_dir: Path,
        minutes: float,
        communicator: Communicator,
        signals: StopSignals,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._model_dir = model_dir
        self._minutes = minutes
        self._communicator = communicator
        self._signals = signals
        self._poll_seconds = poll_seconds
        self._evaluated: set[int] = set()
        # Steps with the versions of their folders; known on rank 0 only.
        self._last: tuple[int, tuple[int, int]] | None = None
        self._skipped: set[tuple[int, tuple[int, int]]] = set()

    def next_step(self, has_ended: Callable[[], bool] | None = None) -> int | None:
        """Waits for the next checkpoint; returns its step, or None after the last one.

        While there is no new checkpoint, rank 0 asks `has_ended` whether the run has
        ended, so that none will follow. Raises AgreedFailure, on all ranks, if no
        checkpoint appears in time, and Preempted if one of them was asked to stop.
        """
        since = time.monotonic()
        num_checks = 0
        while True:
            num_checks += 1
            # A status that changes counts as progress for the watchdog.
            self._communicator.report_status(
                f"waiting for a checkpoint, check {num_checks}", is_timed=False
            )
            step: int | None = None
            is_over = False
            if self._communicator.rank == 0:
                step = self._find_next()
                is_over = step is None and has_ended is not None and has_ended()
            is_late = time.monotonic() - since > 60 * self._minutes
            of_ranks = self._communicator.allgather(
                (step, is_over, is_late, bool(self._signals.seen))
            )
            if any(stop_requested for *_, stop_requested in of_ranks):
                raise Preempted(
                    "stopped watching for checkpoints",
                    "Rerun the same command to evaluate the checkpoints that exist",
                )
            step, is_over, is_late, _ = of_ranks[0]
            if step is not None or is_over:
                return step
            if is_late:
                raise AgreedFailure(
                    f"no new checkpoint has appeared in {self._model_dir} for"
                    f" {self._minutes:g} minutes, and the run's last checkpoint has not"
                    " been evaluated. Check that the training is alive, or raise"
                    " --watch_minutes."
                )
            if num_checks == 1:
                print(
                    f"waiting for a checkpoint in {self._model_dir}, up to"
                    f" {self._minutes:g} minutes",
                    flush=True,
                )
            time.sleep(self._poll_seconds)

    def evaluated(self, step: int) -> None:
        """Records that the checkpoint of a step has been evaluated."""
        self._evaluated.add(step)

    def skip(self, step: int, reason: str) -> None:
        """Skips a checkpoint that can't be read; to be called on rank 0.

        If the run writes the step again, or has done so meanwhile, this counts as a new
        checkpoint. The reason is not told if the run has removed it.
        """
        version = self._version(step)
        if version is None:
            logging.warning(
                "Skipping the checkpoint of step %d: the run has removed it.", step
            )
        elif (step, version) == self._last:
            logging.warning("Skipping the checkpoint of step %d: %s.", step, reason)
            self._skipped.add((step, version))

    def _find_next(self) -> int | None:
        for step in step_dirs.saved_steps(self._model_dir):
            version = self._version(step)
            is_known = step in self._evaluated or (step, version) in self._skipped
            if version is not None and not is_known:
                self._last = (step, version)
                return step
        return None

    def _version(self, step: int) -> tuple[int, int] | None:
        return step_dirs.version(step_dirs.of_step(self._model_dir, step))
