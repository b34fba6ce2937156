"""The error of a user's mistake, and failed imports as a sentence."""

import contextlib
import errno
import itertools
import os
import pathlib
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from types import ModuleType, TracebackType

from resnet.base import interpreter, limits

EXIT_CODE = 2  # Exit code of all programs for a mistake of the user.
# Errors that remain until the user does something about the file; so does EINVAL of a
# named pipe.
_LASTING = FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError


class UserError(ValueError):
    """A mistake, as a sentence of what was expected, what was found and what to do."""


class NodeError(UserError):
    """A mistake that all ranks of a node find, of which the first one tells."""


@contextlib.contextmanager
def naming_failures(action: str) -> Iterator[None]:
    """Turns a failure of files or memory in the block, an action, into a UserError."""
    try:
        yield
    except OSError as error:
        path = "" if error.filename is None else f": {error.filename!r}"
        reason = error.strerror or error  # Without "[Errno 28]".
        raise UserError(f"{action} failed: {reason}{path}") from error
    except MemoryError as error:
        raise UserError(f"{action} failed for lack of memory") from error


@contextlib.contextmanager
def naming_unreadable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns a failure to read a file in the block into a sentence.

    It is a UserError if the failure remains until the user does something about the
    file, else a RuntimeError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        message = f"{error.filename or path} can't be read ({reason});"
        if isinstance(error, _LASTING) or error.errno == errno.EINVAL:
            raise UserError(f"{message} put it back") from error
        raise RuntimeError(
            f"{message} check its disk or file server, and rerun the same command"
        ) from error


def report_failed_imports() -> None:
    """Makes this process report in a sentence why an import fails, if that is known.

    It is to be called before other imports.
    """
    sys.excepthook = _print


def describe_failed_import(error: BaseException) -> str:
    """Returns the sentence about a failed start; empty if the cause isn't known.

    It is a limit of the system, PYTHONPATH that makes an import fail, or a Python that
    isn't the environment's. An error other than ImportError and SyntaxError, and what
    a module lacks, counts as an import's only if it was raised at the top level of a
    module, since functions may also be called after the imports.
    """
    if limit := limits.describe_exhaustion(error):
        return limit
    frames = traceback.extract_tb(error.__traceback__)
    is_at_top_level = bool(frames) and frames[-1].name == "<module>"
    lacking = _module_that_lacks_something(error)
    is_of_import = lacking or isinstance(error, ImportError | SyntaxError)
    if not is_at_top_level and not is_of_import:
        return ""
    words = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = map(os.path.realpath, filter(None, words))
    files = [frame.filename for frame in frames]
    if isinstance(error, ImportError) and error.path:
        files.append(error.path)
    if lacking and lacking.__file__:
        files.append(lacking.__file__)
    others = [file for file in reversed(files) if not _is_ours(file)]
    for file, folder in itertools.product(others, folders):
        if os.path.realpath(file).startswith(os.path.join(folder, "")):
            return (
                f"{file} fails ({error}). It is imported since PYTHONPATH names"
                f" {folder}, which hides packages of the environment. Unset PYTHONPATH."
            )
    if isinstance(error, ModuleNotFoundError) and error.name:
        return interpreter.describe_missing(error.name.split(".")[0])
    return ""


def _module_that_lacks_something(error: BaseException) -> ModuleType | None:
    """Returns the module without what was imported from it, or looked up in it."""
    if isinstance(error, ImportError) and error.name:
        return sys.modules.get(error.name.split(".")[0])
    of_error = error.obj if isinstance(error, AttributeError) else None
    return of_error if isinstance(of_error, ModuleType) else None


def _is_ours(file: str) -> bool:
    """Returns whether a file is of this project or of its environment."""
    path = os.path.realpath(file)
    root = str(pathlib.Path(__file__).resolve().parents[2])
    packages = os.path.realpath(sysconfig.get_path("purelib"))
    return any(path.startswith(os.path.join(top, "")) for top in (root, packages))


def _print(
    kind: type[BaseException], error: BaseException, place: TracebackType | None
) -> None:
    if isinstance(error, KeyboardInterrupt):  # Python ends by this signal afterwards.
        new_line = "\n" * sys.stderr.isatty()  # Behind a terminal's ^C.
        print(f"{new_line}error: interrupted", file=sys.stderr, flush=True)
        return
    if isinstance(error, Exception) and (sentence := describe_failed_import(error)):
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)
    sys.__excepthook__(kind, error, place)
