"""Waits for the checkpoints of a run, which another job writes."""

import time
from collections.abc import Callable
from pathlib import Path

from absl import logging

from resnet.checkpoint import step_dirs
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.runtime.preemption import Preempted, StopSignals

POLL_SECONDS = 2.0


class CheckpointWatch:
    """The checkpoints of a run as they appear, the oldest first, the same on all ranks.

    Rank 0 looks, and all follow.
    """

    def __init__(
        self,
        model_dir: Path,
        minutes: float,
        communicator: Communicator,
        signals: StopSignals,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Begins with what is there.

        Args:
            model_dir: Folder of the run; it needn't be there yet.
            minutes: How long to wait for each checkpoint.
            communicator: The ranks.
            signals: What may ask this rank to leave.
            poll_seconds: From one look to the next.
        """
        self._model_dir = model_dir
        self._minutes = minutes
        self._communicator = communicator
        self._signals = signals
        self._poll_seconds = poll_seconds
        self._evaluated: set[int] = set()
        # Steps, and when their folders were made: here rank 0 knows more.
        self._offered = (0, 0)
        self._skipped: set[tuple[int, int]] = set()

    def next_step(self, has_ended: Callable[[], bool] | None = None) -> int | None:
        """Returns the step of the next checkpoint, when it is there.

        Args:
            has_ended: Asked on rank 0, as long as there is none: whether the run has
                ended. Then there will be none, and None is returned.

        Raises:
            AgreedFailure: On all ranks, if none has come for so long.
            Preempted: On all ranks, if one of them was asked to leave.
        """
        since = time.monotonic()
        number_of_looks = 0
        while True:
            number_of_looks += 1
            # As long as the words change, this rank doesn't stand still.
            self._communicator.report_status(
                f"looking for a checkpoint, look {number_of_looks}", is_timed=False
            )
            step: int | None = None
            is_over = False
            if self._communicator.rank == 0:
                step = self._look()
                is_over = step is None and has_ended is not None and has_ended()
            is_late = time.monotonic() - since > 60 * self._minutes
            seen = self._communicator.allgather(
                (step, is_over, is_late, bool(self._signals.seen))
            )
            if any(wants_to_leave for *_, wants_to_leave in seen):
                raise Preempted(
                    "stopped watching for checkpoints",
                    "Rerun the same command to evaluate the checkpoints that exist",
                )
            step, is_over, is_late, _ = seen[0]
            if step is not None or is_over:
                return step
            if is_late:
                raise AgreedFailure(
                    f"no new checkpoint has come in {self._model_dir} for"
                    f" {self._minutes:g} minutes, and its run's last one was not among"
                    " those that were evaluated. See how the run is, or give more"
                    " --watch_minutes."
                )
            if number_of_looks == 1:
                print(
                    f"waiting for a checkpoint in {self._model_dir}, up to"
                    f" {self._minutes:g} minutes",
                    flush=True,
                )
            time.sleep(self._poll_seconds)

    def evaluated(self, step: int) -> None:
        """Notes that a step's checkpoint was evaluated."""
        self._evaluated.add(step)

    def skip(self, step: int, reason: str) -> None:
        """Notes that a checkpoint can't be read: to be called on rank 0.

        If the run writes it again, or just has, it is a new one.

        Args:
            step: Of the checkpoint that came last.
            reason: What is wrong with it, unless it is just gone.
        """
        made = self._made_at(step)
        if made is None:
            logging.warning(
                "Skipping the checkpoint of step %d: the run has removed it.", step
            )
        elif (step, made) == self._offered:
            logging.warning("Skipping the checkpoint of step %d: %s.", step, reason)
            self._skipped.add((step, made))

    def _look(self) -> int | None:
        for step in step_dirs.saved_steps(self._model_dir):
            made = self._made_at(step)
            if (
                made is not None
                and step not in self._evaluated
                and (step, made) not in self._skipped
            ):
                self._offered = (step, made)
                return step
        return None

    def _made_at(self, step: int) -> int | None:
        """Returns when a checkpoint's folder was made, in ns, or None if it is gone."""
        try:
            return step_dirs.of_step(self._model_dir, step).stat().st_mtime_ns
        except FileNotFoundError:
            return None
