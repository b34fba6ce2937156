"""Writes checkpoints in the background, so that the training continues meanwhile."""

import contextlib
import threading
import time
from pathlib import Path

from absl import logging

from resnet.base.errors import UserError
from resnet.base.text import without_graph_names
from resnet.checkpoint import step_dirs, tensors
from resnet.checkpoint.tensors import ALONE, Checkpoint
from resnet.distributed.communicator import BackgroundCommunicator

RETRY_SECONDS = 60.0  # From a failed save to the request for another snapshot.
LAST_TRIES = 3  # How often `finish` tries the last checkpoint of a run.
_BETWEEN_LAST_TRIES_SECONDS = 5.0


class CheckpointWriter:
    """Writes snapshots one after the other; a newer one replaces one that waits.

    A save that fails, as on a full disk, is logged as an error and has no other effect:
    the older checkpoints are kept, and `wants_another` asks for a new snapshot.

    Where ranks have state of their own, each rank has a writer, and all of them are
    given snapshots of the same steps in the same order. Their threads agree on which
    snapshot to write, and on whether that has succeeded on all ranks.
    """

    def __init__(
        self,
        model_dir: Path,
        keep: int,
        retry_seconds: float = RETRY_SECONDS,
        ranks: BackgroundCommunicator = ALONE,
    ) -> None:
        """Starts with nothing to write, for these ranks, each with its own writer.

        The number to keep is that of `retention.steps_to_remove`; `wants_another` is
        true so many seconds after a failed save.
        """
        self._model_dir = model_dir
        self._keep = keep
        self._retry_seconds = retry_seconds
        self._ranks = ranks
        self._changed = threading.Condition()  # Guards the attributes below.
        self._thread: threading.Thread | None = None
        self._num_submitted = 0
        self._waiting: Checkpoint | None = None
        self._is_closing = False
        self._failed: Checkpoint | None = None
        self._failed_at = 0.0
        self._error = ""

    def submit(self, snapshot: Checkpoint) -> None:
        """Queues a snapshot to be written; returns at once."""
        with self._changed:
            self._num_submitted += 1
            self._waiting = snapshot
            self._is_closing = False
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_all, name="checkpoint-writer", daemon=True
                )
                self._thread.start()

    @property
    def wants_another(self) -> bool:
        """Whether the last save failed, and did so at least `retry_seconds` ago."""
        with self._changed:
            return (
                self._failed is not None
                and self._thread is None
                and time.monotonic() - self._failed_at >= self._retry_seconds
            )

    def finish(self) -> None:
        """Waits until the newest snapshot is written; UserError if it can't be."""
        if not self.try_to_finish():
            raise UserError(
                f"the newest checkpoint can't be written: {self._error}."
                f" {self._describe_older()}. Free disk space, check the folder, and"
                " rerun the same command to resume."
            )

    def try_to_finish(self) -> bool:
        """Waits until the newest snapshot is written; returns False if it can't be."""
        for number in range(LAST_TRIES):
            self.close()
            if (failed := self._failed) is None:
                return True
            if number < LAST_TRIES - 1:
                time.sleep(min(_BETWEEN_LAST_TRIES_SECONDS, self._retry_seconds))
                self.submit(failed)
        return False

    def close(self) -> None:
        """Waits until all submitted snapshots are written, replaced or have failed."""
        with self._changed:
            thread = self._thread
            self._is_closing = True
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _write_all(self) -> None:
        while (snapshot := self._next()) is not None:
            try:
                tensors.save(self._model_dir, snapshot, self._keep, self._ranks)
            except Exception as error:  # Any error would otherwise end only the thread.
                reason = without_graph_names(str(error))
                # A snapshot that is tried again has been told of.
                if self._ranks.rank == 0 and snapshot is not self._failed:
                    logging.error(
                        "The checkpoint of step %d can't be written: %s. %s. The save"
                        " will be retried.",
                        snapshot.step,
                        reason,
                        self._describe_older(),
                    )
                with self._changed:
                    self._error = reason
                    self._failed, self._failed_at = snapshot, time.monotonic()
            else:
                with self._changed:
                    self._failed = None

    def _describe_older(self) -> str:
        with contextlib.suppress(UserError):  # The folder can't be read either.
            if steps := step_dirs.saved_steps(self._model_dir):
                return f"The newest one that was written is that of step {steps[-1]}"
        return "No older one was found"

    def _next(self) -> Checkpoint | None:
        """Returns the snapshot to write next; None, and the thread ends, without one.

        One rank may have taken a snapshot that a newer one has replaced on another
        rank. Then each rank whose snapshot is older than another rank's drops it and
        takes its next one, until all ranks have the same.
        """
        with self._changed:
            snapshot, number = self._take()
        while snapshot is not None:
            numbers = self._ranks.allgather(number)
            if min(numbers) == max(numbers):
                return snapshot
            if number < max(numbers):
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._is_closing)
                    snapshot, number = self._take()
        return None

    def _take(self) -> tuple[Checkpoint | None, int]:
        """Takes the waiting snapshot, with the lock held; returns it and its number.

        If no snapshot waits it is None, and the thread counts as ended.
        """
        snapshot, self._waiting = self._waiting, None
        if snapshot is None:
            self._thread = None
        return snapshot, self._num_submitted
