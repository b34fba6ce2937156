"""A file that grows line by line; a full disk doesn't end the run."""

import os
from pathlib import Path

from absl import logging


class AppendFile:
    """Keeps lines that can't be written, and retries them with the next line."""

    def __init__(self, path: Path) -> None:
        """Opens a file for appending.

        Raises:
            OSError: If the file can't be opened.
        """
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - see close.
        self._waiting = bytearray()
        self._has_failed = False

    def write(self, text: str) -> None:
        """Appends a text."""
        self._waiting += text.encode()
        self._try_all(is_synced=False)

    def sync(self) -> None:
        """Flushes all lines so far to disk, so that they survive a system crash."""
        self._try_all(is_synced=True)

    def _try_all(self, is_synced: bool) -> None:
        try:
            while self._waiting:
                num_written = self._file.write(self._waiting)
                del self._waiting[:num_written]
            if is_synced:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._report(error)
        else:
            self._has_failed = False

    def _report(self, error: OSError) -> None:
        if not self._has_failed:
            logging.error(
                "%s can't be written (%s). %s",
                self._path,
                os.strerror(error.errno or 0),
                "Its lines are kept in memory until it can be written again."
                if self._waiting
                else "Its last lines may be lost.",
            )
        self._has_failed = True

    def close(self) -> None:
        """Writes the lines that are left, if possible, and closes the file."""
        self.write("")
        try:
            self._file.close()
        except OSError as error:  # Of NFS, which may write only now.
            self._report(error)
