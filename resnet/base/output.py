"""What people read: standard output and standard error, which never end a program.

A text that can't be written, as on a full disk, to a closed pipe or to a lost terminal,
is dropped, on standard error also if nobody reads it (Ctrl-S). The next one is written
if that is possible again. `print_result` is for what a program is run for, which must
not be lost silently.
"""

import contextlib
import errno
import io
import os
import re
import select
import sys
from collections.abc import Iterator
from typing import Any

from resnet.base.errors import UserError

_errors: dict[int, OSError] = {}  # The last one of each descriptor.
_cut: set[int] = set()  # Descriptors whose last line is incomplete, or a bar.
_unread: set[int] = set()  # Descriptors whose reader was too slow the last time.
_READER_SECONDS = 2.0
_STARTUP_NOTE = re.compile("^I0000|^WARNING: All log messages before|cuInit")


def write(descriptor: int, data: Any, is_patient: bool = True) -> None:
    """Writes bytes to a descriptor; drops the rest of them if that fails.

    If that has cut a line, or if the text is a bar, led by a carriage return, the next
    text that is no bar begins on a new line. If not `is_patient`, it
    waits for a reader for two seconds, or if that was in vain before, not at all.
    """
    seconds = 0 if descriptor in _unread else _READER_SECONDS
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    is_bar = bytes(data[:1]) == b"\r"
    text = (b"\n" if descriptor in _cut and not is_bar else b"") + bytes(data)
    done = 0
    try:
        while done < len(text):
            if not poller.poll(None if is_patient else 1000 * seconds):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            # No more than a pipe that is ready takes at once.
            done += os.write(descriptor, text[done : done + select.PIPE_BUF])
    except OSError as error:
        _errors[descriptor] = error
    (_unread.add if done < len(text) else _unread.discard)(descriptor)
    if done:
        is_cut = (done < len(text) or is_bar) and not text[:done].endswith(b"\n")
        (_cut.add if is_cut else _cut.discard)(descriptor)


class _Output(io.FileIO):
    """A file whose `write` never fails."""

    def write(self, data: Any) -> int:
        write(self.fileno(), data, is_patient=self.fileno() != 2)
        return memoryview(data).nbytes


def stream(descriptor: int, like: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """Returns a text stream that never fails, with the settings of another stream.

    Characters that its encoding lacks are escaped. Without a stream, as of a descriptor
    that was closed when Python started, it is in UTF-8.
    """
    file = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
    if like is None:
        return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)
    return io.TextIOWrapper(
        file,
        like.encoding,
        "backslashreplace" if like.errors == "strict" else like.errors,
        line_buffering=like.line_buffering,
        write_through=like.write_through,
    )


def secure() -> None:
    """Has `sys.stdout` and `sys.stderr` drop what they can't write.

    To be called before files are opened: descriptors up to 2 that are closed are opened
    first, or else a file of the program would get one of their numbers, and with it
    what TensorFlow and child processes print. Streams that tests or notebooks have
    replaced are left as they are.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - Open to the end.
    if sys.stdout is sys.__stdout__:
        sys.stdout = stream(1, sys.__stdout__)  # type: ignore[arg-type]
    if sys.stderr is sys.__stderr__:
        sys.stderr = stream(2, sys.__stderr__)  # type: ignore[arg-type]


@contextlib.contextmanager
def without_startup_notes() -> Iterator[None]:
    """Leaves out TensorFlow's notes while it is imported in the block.

    TensorFlow 2.21 prints them at any TF_CPP_MIN_LOG_LEVEL. Warnings and errors are
    passed on at the end, except the one about a missing GPU.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.memfd_create("notes"), "w+b") as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            notes.seek(0)
            for line in notes.read().decode(errors="replace").splitlines():
                if not _STARTUP_NOTE.search(line):
                    print(line, file=sys.stderr)


def print_result(text: str) -> None:
    """Prints a text for which the program was run, such as a plan or predictions.

    Raises:
        UserError: If it, or what was printed before, can't be written, other than to a
            closed pipe, as of `head`.
    """
    print(text, flush=True)
    error = _errors.pop(1, None)
    if error is not None and error.errno != errno.EPIPE:
        reason = os.strerror(error.errno or 0)
        raise UserError(
            f"the result can't be written to standard output: {reason}. Free disk"
            " space, or redirect it to another file."
        )
