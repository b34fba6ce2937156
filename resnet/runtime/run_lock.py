"""The lock of a model_dir, so that one job at a time trains in it."""

import contextlib
import errno
import fcntl
import os
import platform
import time
from pathlib import Path

from absl import logging

from resnet.base import atomic_files
from resnet.base.atomic_files import is_at
from resnet.base.errors import UserError
from resnet.config.config import CONFIG_FILE, METRICS_FILE

FILE = "lock"
# Other files of the folder, such as an evaluation's results, are not the job's.
_FILES_OF_A_JOB = (CONFIG_FILE, METRICS_FILE, "diverged-step-*.json")
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Locked(UserError):
    """Another job holds the lock."""


class RunLock:
    """The lock of a run's folder, which rank 0 holds.

    It is an flock: the kernel releases it when the process ends, however it ends. On
    NFS and Lustre it works between hosts as far as locks of the file system do.
    """

    def __init__(self, model_dir: Path) -> None:
        """Acquires the lock, and removes unfinished files of a job that was killed.

        Raises:
            Locked: If another job holds the lock, naming that job.
            UserError: If the lock file can't be opened.
        """
        self._path = model_dir / FILE
        self._folder = model_dir.stat()
        self._descriptor = _lock(self._path)
        if self._descriptor is not None:  # Else another job may be writing these.
            for name in _FILES_OF_A_JOB:
                atomic_files.remove_leftovers(model_dir, name)

    def require(self) -> None:
        """Refuses to continue in a folder that is no longer this job's.

        If only the lock's file was removed, it is locked again. If the file system
        can't tell now, the job continues with a warning.

        Raises:
            UserError: If the folder was removed, moved, replaced or locked by others.
        """
        try:
            is_here = is_at(self._folder, self._path.parent)
            is_locked = self._descriptor is None or is_at(self._descriptor, self._path)
        except OSError as error:
            logging.warning(
                f"it can't be checked whether {self._path.parent} is still locked"
                f" ({os.strerror(error.errno or 0)}); the run continues."
            )
            return
        if not is_here:
            raise UserError(
                f"{self._path.parent} must stay where it is while the run trains; it"
                f" was {self._what_happened()}. The run ends, since nothing more can be"
                " saved there. To resume from the last checkpoint, put the folder back"
                " and rerun the same command."
            )
        if is_locked:
            return
        logging.warning("%s was removed or replaced and is locked again.", self._path)
        descriptor = _lock(self._path)
        self._close()
        self._descriptor = descriptor

    def _what_happened(self) -> str:
        """Returns what happened to the folder, judging by the open lock file."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                now = Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
                if now.name == FILE and now.parent != self._path.parent.resolve():
                    return f"moved to {now.parent}"
        return "removed or replaced"

    def release(self) -> None:
        """Releases the lock, and removes its file; a file of another job stays."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # A folder that is read-only by now.
                if is_at(self._descriptor, self._path):
                    self._path.unlink()
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # Of NFS, which writes only now.
                os.close(self._descriptor)
            self._descriptor = None


def holder(model_dir: Path) -> str:
    """Returns what the job says about itself that trains in a folder, or nothing."""
    with contextlib.suppress(OSError), (model_dir / FILE).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(1000).strip() or "of unknown origin"
    return ""


def _lock(path: Path) -> int | None:
    """Returns the descriptor of the locked file, or None where locks don't work."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(
                f"the lock file {path} can't be opened:"
                f" {os.strerror(error.errno or 0)}. Remove it, free disk space, or"
                " choose another --model_dir."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno in _NO_LOCKS_HERE:
                logging.warning(
                    f"the file system of {path.parent} supports no locks ({error}): a"
                    " second job in this folder would not be detected"
                )
                return None
            raise Locked(
                f"{path.parent} is locked by another job"
                f" ({holder or 'of unknown origin'}). Wait for it, stop it, or choose"
                " another --model_dir."
            ) from error
        if is_at(descriptor, path):
            break
        os.close(descriptor)  # The previous holder has just removed the file.
    job = os.environ.get("SLURM_JOB_ID")
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    text = f"process {os.getpid()} on {platform.node()}, since {started}"
    text += f", Slurm job {job}" if job else ""
    with contextlib.suppress(OSError):  # On a full disk the lock works without a name.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{text}\n".encode())
    return descriptor
