"""The folder for the temporary files of this process.

TensorFlow's AutoGraph writes some forty files a rank and removes them at Python's own
exit, to which a rank that is killed doesn't come. Its guard then removes the folder.
"""

import atexit
import functools
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from data_prep.errors import UserError


@functools.cache
def path() -> Path:
    """Returns where the folder is, or would be: in $TMPDIR, or where else Python looks.

    Its guard knows it before it is there, so that no kill can come between the two.

    Raises:
        UserError: If there is no folder that can be written to.
    """
    try:
        parent = os.path.abspath(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise UserError(
            f"a folder for temporary files must be there: {error}. Name one by TMPDIR."
        ) from error
    return Path(parent, f"resnet-cpu-{secrets.token_hex(8)}")


def make() -> None:
    """Makes the folder and has temporary files go there; it goes at Python's exit.

    Raises:
        UserError: If it can't be made.
    """
    folder = path()
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(
            f"a folder for temporary files must be there: {error}. Name another by"
            " TMPDIR."
        ) from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
