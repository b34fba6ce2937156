"""The programs, called inside the tests' own ranks instead of started by mpirun.

A start costs each rank some five seconds, most of it for TensorFlow. What a program
does before and after its `main` is checked by the real jobs of tests/jobs and
tests/fault: watchdogs, the exit code of mpirun, locks that end with a process.
"""

import contextlib
import dataclasses
import gc
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, TextIO
from unittest import mock

from absl import logging
from absl.testing import flagsaver

from resnet.distributed.communicator import Communicator
from resnet.hardware import placement
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import run_lock
from resnet.watchdog import scratch_dir
from tests.parallel.lockstep import Lockstep

ALONE = ProcessInfo()
_abort_alone = Communicator.abort
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@dataclasses.dataclass(frozen=True)
class Done:
    """How a program has ended on all ranks, as `subprocess.run` tells it of a job.

    Attributes:
        returncode: The exit code, the same on all ranks.
        stdout: What the ranks have printed, one after the other.
        stderr: The same of standard error.
    """

    returncode: int
    stdout: str
    stderr: str


class Aborted(AssertionError):
    """A rank would have ended the job by itself."""


def run(
    lockstep: Lockstep,
    program: ModuleType,
    arguments: Sequence[str],
    is_alone: bool = False,
) -> Done:
    """Runs a program on all ranks, or on rank 0 as a job of one rank; returns its end.

    Args:
        lockstep: The ranks.
        program: Its module, with `run()`.
        arguments: Command line of this rank, without the program.
        is_alone: Whether rank 0 runs it as a job of one rank.
    """
    own: tuple[int, str, str] | None = None
    failure = None
    if lockstep.rank == 0 or not is_alone:
        try:
            own = _run(program, arguments, is_alone)
        except Exception:
            failure = traceback.format_exc()
    failures = lockstep.failures(f"the end of {program.__name__}", failure)
    assert not any(failures), "\n".join(filter(None, failures))
    ends = [one for one in lockstep.gather(own) if one is not None]
    codes = [code for code, _, _ in ends]
    assert len(set(codes)) == 1, f"exit codes of the ranks: {codes}\n{ends}"
    return Done(
        codes[0],
        "".join(stdout for _, stdout, _ in ends),
        "".join(stderr for _, _, stderr in ends),
    )


def _run(
    program: ModuleType, arguments: Sequence[str], is_alone: bool
) -> tuple[int, str, str]:
    """Returns exit code, standard output and standard error of this rank."""
    code = 0
    with contextlib.ExitStack() as stack:
        stdout, stderr = stack.enter_context(_captured())
        for change in _changes(program, arguments, is_alone):
            stack.enter_context(change)
        stack.enter_context(_handlers_kept())
        try:
            program.run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        finally:
            if sys.stdout is not stdout:  # Ranks but the first print to nowhere.
                sys.stdout.close()
        texts = [_read(file) for file in (stdout, stderr)]
    gc.collect()  # Networks and graphs.
    return code, *texts


def _changes(
    program: ModuleType, arguments: Sequence[str], is_alone: bool
) -> Iterator[contextlib.AbstractContextManager]:
    """Yields what is other than in a process of the program's own."""
    yield flagsaver.flagsaver()  # The next program begins with the defaults again.
    yield mock.patch.object(sys, "argv", [str(program.__file__), *arguments])
    yield mock.patch.object(Communicator, "start_watchdog", _no_watchdog)
    yield mock.patch.object(Communicator, "abort", _abort)
    yield mock.patch.object(scratch_dir, "make", return_value=None)
    if is_alone:
        yield mock.patch.object(placement, "find_process_info", return_value=ALONE)
    yield _locks_released()


def _no_watchdog(communicator: Any, *arguments: Any) -> None:
    """There is none: it would end the tests after the program's end."""


def _abort(communicator: Communicator, exit_code: int, reason: str) -> None:
    if communicator.num_ranks == 1:
        _abort_alone(communicator, exit_code, reason)
    raise Aborted(f"exit code {exit_code}: {reason}")


@contextlib.contextmanager
def _locks_released() -> Iterator[None]:
    """Releases the locks of model_dirs, which a process keeps to its end."""
    taken: list[run_lock.RunLock] = []
    take = run_lock.RunLock.__init__

    def take_and_note(lock: run_lock.RunLock, *arguments: Any) -> None:
        take(lock, *arguments)
        taken.append(lock)

    with mock.patch.object(run_lock.RunLock, "__init__", take_and_note):
        yield
    for lock in taken:
        lock.release()


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restores pytest's handlers of signals and absl's verbosity."""
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    verbosity = logging.get_verbosity()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _captured() -> Iterator[tuple[TextIO, TextIO]]:
    """Has standard output and error, also those of C++, go to two files."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="output-"))
        files = [  # They have names, and so are left if the process crashes.
            stack.enter_context(
                open(f"{folder}/{name}.txt", "w+", buffering=1, errors="replace")
            )
            for name in ("stdout", "stderr")
        ]
        for number, file in zip((1, 2), files, strict=True):
            stack.callback(os.close, saved := os.dup(number))
            stack.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        stdout, stderr = files
        stack.enter_context(mock.patch.object(sys, "stdout", stdout))
        stack.enter_context(mock.patch.object(sys, "stderr", stderr))
        handler = logging.get_absl_handler().python_handler
        stack.enter_context(mock.patch.object(handler, "stream", stderr))
        yield stdout, stderr


def _read(file: TextIO) -> str:
    file.flush()
    file.seek(0)
    return file.read()
