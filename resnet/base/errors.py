"""The error of a user's mistake, and output that is never an error itself."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from resnet.base.import_failures import EXIT_CODE as EXIT_CODE


class UserError(ValueError):
    """A mistake of the user, reported as one sentence without a traceback.

    The sentence says what was expected, what was found and what to do.
    """


@contextlib.contextmanager
def naming_failures(action: str) -> Iterator[None]:
    """Turns a failure of files or memory in the block into a UserError.

    `action` describes the block, such as "reading the record set in /data".
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{action} failed: {error}") from error
    except MemoryError as error:
        raise UserError(f"{action} failed for lack of memory") from error


def escape_unprintable() -> None:
    """Has standard output escape characters that its encoding lacks, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def print_to_pipe(text: str) -> None:
    """Prints a text; for a reader that has closed the pipe, such as `head`, nothing."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The rest of the buffer is written when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
