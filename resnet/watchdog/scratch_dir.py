"""The scratch directory for the temporary files of this process.

TensorFlow's AutoGraph writes about forty files per rank and removes them when Python
exits regularly. Those of a rank that is killed are removed by its watchdog.
"""

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from resnet.base.errors import UserError


@functools.cache
def path() -> Path:
    """Returns the path of the directory, which the watchdog learns before it exists.

    Raises:
        UserError: If there is no folder for temporary files.
    """
    with _naming_folder():
        parent = os.path.abspath(tempfile.gettempdir())
    return Path(parent, f"resnet-cpu-{secrets.token_hex(8)}")


def make() -> None:
    """Creates the directory, which is removed when Python exits.

    Raises:
        UserError: If it can't be created.
    """
    folder = path()
    with _naming_folder():
        folder.mkdir(mode=0o700)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


@contextlib.contextmanager
def _naming_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"a folder for temporary files is needed: {error}. Set TMPDIR to one that"
            " can be written to."
        ) from error
