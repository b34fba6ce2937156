"""What a process does when it ends, also where Python can't end it in the usual way."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn

_functions: list[Callable[[], object]] = []
_is_at_once = False


def register(function: Callable[[], object]) -> None:
    """Registers a function to be called when the process ends; the last one first."""
    atexit.register(function)
    _functions.append(function)


def require_at_once() -> None:
    """Makes the process end without Python's finalization.

    With a connection to a TensorFlow server that is lost, that would wait forever: for
    a thread of the runtime that waits for the server.
    """
    global _is_at_once
    _is_at_once = True


def is_at_once() -> bool:
    """Returns whether `require_at_once` was called."""
    return _is_at_once


def exit_at_once(exit_code: int) -> NoReturn:
    """Calls the registered functions and ends the process at once."""
    for function in reversed(_functions):
        function()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
