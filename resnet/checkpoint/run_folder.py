"""Creates the folder of a run, `model_dir`, and checks that it is writable."""

import contextlib
import os
import tempfile
from pathlib import Path

from resnet.base.errors import UserError
from resnet.checkpoint import step_dirs

_LONGEST_NAME = 150  # At least that of any file of a run, from its folder.


def make(model_dir: str) -> None:
    """Creates the folder if it doesn't exist, and tries to write to it.

    Raises:
        UserError: If the folder, or its folder of checkpoints, is not writable, or if
            its name is not valid UTF-8, which TensorFlow requires.
    """
    try:
        model_dir.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"--model_dir must be a name in UTF-8; got {os.fsencode(model_dir)!r}."
            " Rename the folder."
        ) from error
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(Path(model_dir, "n" * _LONGEST_NAME))
        Path(model_dir).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=model_dir).close()
    except OSError as error:
        raise not_writable(error) from error
    folder = Path(model_dir, step_dirs.FOLDER)
    try:
        if os.path.lexists(folder):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"{folder}, in which the checkpoints are saved, must be a folder that can"
            f" be written to: {os.strerror(error.errno or 0)}. Move it away, or choose"
            " another --model_dir."
        ) from error


def not_writable(error: OSError) -> UserError:
    """Returns the error for a folder that can't be written to."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return UserError(
            f"--model_dir must be a folder; {error.filename} is a file, or lies in one."
        )
    return UserError(
        f"--model_dir must be a folder that can be written to; {error.filename}:"
        f" {os.strerror(error.errno or 0)}. Choose another one."
    )
