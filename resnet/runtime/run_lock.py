"""The lock of a model_dir, so that one job at a time trains in it."""

import contextlib
import errno
import fcntl
import os
import platform
import time
from pathlib import Path

from absl import logging

from data_prep import atomic_files
from data_prep.errors import UserError
from resnet.config.config import CONFIG_FILE
from resnet.metrics import jsonl

FILE = "lock"
# Other files of the folder, such as an evaluation's results, are not the job's.
_FILES_OF_A_JOB = (CONFIG_FILE, jsonl.FILE, "diverged-step-*.json")
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Locked(UserError):
    """Another job holds the lock."""


class RunLock:
    """The lock of a run's folder, which rank 0 holds.

    It is an flock: the kernel releases it when the process ends, however it ends, so a
    job that died never leaves it locked. On NFS and Lustre it works between hosts as
    far as locks of the file system do.
    """

    def __init__(self, model_dir: Path) -> None:
        """Acquires the lock, and removes unfinished files of a job that was killed.

        Where the file system has no locks nothing is removed, since another job may be
        writing these files.

        Raises:
            Locked: If another job holds the lock, naming that job.
            UserError: If the lock file can't be opened.
        """
        self._path = model_dir / FILE
        self._descriptor = _lock(self._path)
        if self._descriptor is not None:
            for name in _FILES_OF_A_JOB:
                atomic_files.remove_leftovers(model_dir, name)

    def release(self) -> None:
        """Releases the lock, and removes its file."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


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
                    "the file system of %s supports no locks (%s): a second job in this"
                    " folder would not be detected",
                    path.parent,
                    os.strerror(error.errno),
                )
                return None
            raise Locked(
                f"{path.parent} is locked by another job"
                f" ({holder or 'of unknown origin'}). Wait for it, stop it, or choose"
                " another --model_dir."
            ) from error
        if _is_the_file(descriptor, path):
            break
        os.close(descriptor)  # The previous holder has just removed the file.
    job = os.environ.get("SLURM_JOB_ID")
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    text = f"process {os.getpid()} on {platform.node()}, since {started}"
    text += f", Slurm job {job}" if job else ""
    with contextlib.suppress(
        OSError
    ):  # A full disk: the lock works without a name in it.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{text}\n".encode())
    return descriptor


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
