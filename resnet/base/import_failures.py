"""Reports an import that fails because of PYTHONPATH as one sentence.

Packages in the folders of PYTHONPATH hide those of the environment. Modules of a site
often put packages of another Python there.
"""

import os
import pathlib
import sys
import traceback
from types import TracebackType

EXIT_CODE = 2  # Exit code of all programs for a mistake of the user.


def report() -> None:
    """Makes this process report such failures; to be called before other imports."""
    sys.excepthook = _print


def describe(error: BaseException) -> str:
    """Returns the sentence about a failed import; empty if PYTHONPATH isn't the cause.

    An error other than ImportError and SyntaxError counts only if it was raised at the
    top level of a module, since functions may also be called after the imports.
    """
    frames = traceback.extract_tb(error.__traceback__)
    is_of_import = isinstance(error, ImportError | SyntaxError) or (
        bool(frames) and frames[-1].name == "<module>"
    )
    if not is_of_import:
        return ""
    folders = [
        os.path.realpath(folder)
        for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if folder
    ]
    files = [frame.filename for frame in frames if not _is_ours(frame.filename)]
    if isinstance(error, ImportError) and error.path:
        files.append(error.path)
    for file in reversed(files):
        for folder in folders:
            if os.path.realpath(file).startswith(os.path.join(folder, "")):
                return (
                    f"{file} fails ({error}). It is imported since PYTHONPATH names"
                    f" {folder}, which hides packages of the environment. Unset"
                    " PYTHONPATH."
                )
    return ""


def _is_ours(file: str) -> bool:
    """Returns whether a file is one of this project."""
    root = str(pathlib.Path(__file__).resolve().parents[2])
    in_project = os.path.relpath(os.path.realpath(file), root).split(os.sep)
    return in_project[0] not in (os.pardir, ".venv")


def _print(
    kind: type[BaseException], error: BaseException, place: TracebackType | None
) -> None:
    if isinstance(error, Exception) and (sentence := describe(error)):
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)
    sys.__excepthook__(kind, error, place)
