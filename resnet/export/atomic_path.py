"""Writes a file or a folder under a hidden name first, and never replaces another."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from resnet.base.atomic_files import sync_folder
from resnet.base.errors import UserError, naming_failures


def check(path: Path) -> None:
    """Refuses a path that exists already, or whose folder doesn't.

    Raises:
        UserError: If it does, or doesn't.
    """
    if os.path.lexists(path):
        raise UserError(
            f"{path} exists already, and exports replace nothing. Remove it, or name"
            " another path."
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UserError(f"{path} must be in an existing folder; {folder} is not one.")


@contextlib.contextmanager
def create(path: Path) -> Iterator[Path]:
    """Yields a path to write to; its content appears at `path` after the block.

    The yielded path has the last part of `path` as its last part, and doesn't exist. It
    lies in a hidden folder, which is removed after an error; a crash can leave it.

    Args:
        path: The file or folder to make.

    Raises:
        UserError: If `path` exists, or something can't be written.
    """
    check(path)
    parent = path.absolute().parent
    hidden = parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    with naming_failures(f"writing {path}"):
        try:
            hidden.mkdir()
            unfinished = hidden / path.name
            yield unfinished
            _sync(unfinished)
            check(path)
            unfinished.rename(path)
            sync_folder(parent)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def _sync(path: Path) -> None:
    """Makes a file durable (fsync), or a folder with all that it contains."""
    files = [path]
    if path.is_dir():
        files = [Path(root, name) for root, _, names in os.walk(path) for name in names]
        for root, _, _ in os.walk(path):
            sync_folder(root)
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
