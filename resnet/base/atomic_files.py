"""Atomic writes: a file appears under its final name complete or not at all."""

import contextlib
import errno
import os
import pathlib
import re
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from resnet.base.errors import UserError, naming_failures

_PARTIAL_SUFFIX = ".partial"
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# ESTALE is NFS's for an open file that another host has removed.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_LEFTOVER_NAME = re.compile(rf"\..+\.[0-9a-f]{{8}}{re.escape(_PARTIAL_SUFFIX)}")


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a file for writing that gets its final name if the block raises no error.

    Until then it is a hidden file beside it, which a crash can leave (`is_leftover`).
    """
    final = pathlib.Path(path)
    if not final.name:  # Such as ".".
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(final))
    # The random part separates several writers of the same file, also on other hosts.
    temporary = final.with_name(
        f".{final.name}.{secrets.token_hex(4)}{_PARTIAL_SUFFIX}"
    )
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(final)  # A write that fails doesn't name its file.
        raise
    sync_folder(final.parent)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replaces a file's content by `data`, durably and atomically."""
    with atomic_file(path) as file:
        file.write(data)


def write_named(path: str | os.PathLike[str], data: bytes, flag: str) -> None:
    """Writes the file that a flag names, atomically, and makes its folder."""
    with naming_failures(f"writing the file of {flag}, {path},"):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path, data)


def require_place(path: str | os.PathLike[str], flag: str) -> None:
    """Refuses a path, which a flag names, at which no file can be written."""
    if os.path.isdir(path):
        raise UserError(f"{flag}={path} is a folder. Name a file in it.")
    parents = pathlib.Path(path).absolute().parents
    folder = next(filter(os.path.lexists, parents), pathlib.Path("/"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{flag}={path} must be in a folder that can be written to; {folder} isn't"
            " one."
        )


def remove_leftovers(folder: str | os.PathLike[str], name: str = "*") -> None:
    """Removes killed writers' temporary files of a name, or glob, in a folder."""
    for path in pathlib.Path(folder).glob(f".{name}.*{_PARTIAL_SUFFIX}"):
        if is_leftover(path):
            path.unlink(missing_ok=True)


def is_leftover(path: pathlib.Path) -> bool:
    """Returns whether a file has the name of a temporary file of `atomic_file`."""
    return _LEFTOVER_NAME.fullmatch(path.name) is not None


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes new and changed file names in a folder durable (fsync).

    File systems without that for folders, such as CIFS and some of FUSE, say so.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(descriptor)


def is_at(opened: int | os.stat_result, path: pathlib.Path) -> bool:
    """Returns whether a file or folder, opened or as it was, is still at its path.

    Raises:
        OSError: If the file system can't tell.
    """
    try:
        if isinstance(opened, int):
            opened = os.fstat(opened)
        return os.path.samestat(opened, path.stat())
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
