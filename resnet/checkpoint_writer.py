"""Saving in the background, so that the training goes on meanwhile."""

import threading
import time
from pathlib import Path

from absl import logging

from data_prep.errors import UserError
from resnet import checkpoints
from resnet.checkpoints import Checkpoint

RETRY_SECONDS = 60.0  # After a save that failed, and that the schedule won't repeat.
LAST_TRIES = 3
_BETWEEN_LAST_TRIES_SECONDS = 5.0


class CheckpointWriter:
    """Writes one snapshot after the other; a newer one replaces one that waits.

    A save that fails, as on a full disk, is said loudly and costs nothing else: the
    older checkpoints stay, and `wants_another` asks for a new snapshot.
    """

    def __init__(
        self, model_dir: Path, keep: int, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        """Begins with nothing to write.

        Args:
            model_dir: Folder of the run.
            keep: As `checkpoints.save` takes it.
            retry_seconds: From a failure to when another snapshot is wanted.
        """
        self._model_dir = model_dir
        self._keep = keep
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: Checkpoint | None = None
        self._failed: Checkpoint | None = None
        self._failed_at = 0.0
        self._error = ""

    def submit(self, snapshot: Checkpoint) -> None:
        """Has a snapshot written; returns at once."""
        with self._lock:
            self._waiting = snapshot
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_all, name="checkpoint-writer", daemon=True
                )
                self._thread.start()

    @property
    def wants_another(self) -> bool:
        """Whether the last save failed, a while ago."""
        with self._lock:
            return (
                self._failed is not None
                and self._thread is None
                and time.monotonic() - self._failed_at >= self._retry_seconds
            )

    def finish(self) -> None:
        """Waits until the newest snapshot is written.

        Raises:
            UserError: If it can't be, although it was tried several times.
        """
        for number in range(LAST_TRIES):
            self.close()
            if (failed := self._failed) is None:
                return
            if number < LAST_TRIES - 1:
                time.sleep(min(_BETWEEN_LAST_TRIES_SECONDS, self._retry_seconds))
                self.submit(failed)
        raise UserError(
            f"the newest checkpoint can't be written: {self._error}. The older ones are"
            " whole; make room, and the same command goes on from there."
        )

    def close(self) -> None:
        """Waits until what was submitted is written, or can't be."""
        if (thread := self._thread) is not None:
            thread.join()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                snapshot, self._waiting = self._waiting, None
                if snapshot is None:
                    self._thread = None
                    return
            try:
                checkpoints.save(self._model_dir, snapshot, self._keep)
            except Exception as error:  # Or nobody would hear of it.
                self._error = str(error)
                logging.error(
                    "The checkpoint of step %d can't be written: %s. The older ones are"
                    " whole, the training goes on, and it is tried again.",
                    snapshot.step,
                    error,
                )
                self._failed, self._failed_at = snapshot, time.monotonic()
            else:
                self._failed = None
