"""Files that appear under their name whole or not at all."""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

_PARTIAL_SUFFIX = ".partial"


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a file for writing that gets its name when the block ends without an error.

    Until then it is a hidden file in the same folder; a crash can leave that one
    behind, see `remove_leftovers`. A file that has the name already is replaced.

    Args:
        path: The file's final name.

    Yields:
        The file, open for writing bytes.
    """
    final = pathlib.Path(path)
    # The random part keeps two writers of the same file apart, on any hosts.
    temporary = final.with_name(
        f".{final.name}.{secrets.token_hex(4)}{_PARTIAL_SUFFIX}"
    )
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(final.parent)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data` as the whole content of a file, durably, or leaves it as it was."""
    with atomic_file(path) as file:
        file.write(data)


def remove_leftovers(folder: str | os.PathLike[str], name: str = "*") -> None:
    """Removes what writers that were killed left in `folder`, not in folders below.

    Args:
        folder: Where they wrote.
        name: Of the file that was to be written, or a pattern of names.
    """
    for leftover in pathlib.Path(folder).glob(f".{name}.*{_PARTIAL_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes the names in a folder durable, those that files have just been given."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
