"""One job at a time in a model_dir."""

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
from resnet import config, metrics_file

FILE = "lock"
# What else is written in the folder, such as an evaluation's results, isn't the job's.
_FILES_OF_A_JOB = (config.FILE, metrics_file.FILE, "diverged-step-*.json")
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Locked(UserError):
    """Another job holds the lock."""


class RunLock:
    """The lock of a folder, for rank 0 to hold.

    The kernel holds it for the process and lets go when that ends, however it ends: a
    dead job's is not in the way. On NFS and Lustre it reaches as far as the file
    system's own locks do.
    """

    def __init__(self, model_dir: Path) -> None:
        """Takes the lock, and removes what a job that was killed has half written.

        Where there are no locks nothing is removed: another job may be writing it.

        Raises:
            Locked: If another job holds it, naming that.
            UserError: If its file can't be opened.
        """
        self._path = model_dir / FILE
        self._descriptor = _lock(self._path)
        if self._descriptor is not None:
            for name in _FILES_OF_A_JOB:
                atomic_files.remove_leftovers(model_dir, name)

    def release(self) -> None:
        """Lets go of it, and removes its file."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _lock(path: Path) -> int | None:
    """Returns the open file that is locked, or None if there are no locks here."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(
                f"{path} must be a file that this user can write to, for one job at a"
                f" time; it can't be opened: {os.strerror(error.errno or 0)}. Remove"
                " it, make room, or name another --model_dir."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno in _NO_LOCKS_HERE:
                logging.warning(
                    "the file system of %s has no locks (%s): nothing keeps a second"
                    " job out",
                    path.parent,
                    os.strerror(error.errno),
                )
                return None
            raise Locked(
                f"{path.parent} must be trained in by one job at a time; there is"
                f" {holder or 'another'}. Wait for it, stop it, or name another"
                " --model_dir."
            ) from error
        if _is_the_file(descriptor, path):
            break
        os.close(descriptor)  # Its holder has just removed it.
    job = os.environ.get("SLURM_JOB_ID")
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    text = f"process {os.getpid()} on {platform.node()}, since {started}"
    text += f", Slurm job {job}" if job else ""
    with contextlib.suppress(OSError):  # A full disk; the lock holds without a name.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{text}\n".encode())
    return descriptor


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
