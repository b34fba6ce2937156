"""The programs, called inside the tests' process instead of in one of their own.

A start costs a program half a second, and one that uses TensorFlow some five. What a
program changes in its process is undone after it. Real processes are what
tests/jobs start: the programs by their paths, and what they do when their process ends.
"""

import contextlib
import dataclasses
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TextIO
from unittest import mock

from absl import logging as absl_logging

from resnet.base import program as base_program
from resnet.runtime import launcher_death, run_lock
from resnet.watchdog import scratch_dir

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Done:
    """How a program has ended, as `subprocess.run` tells it of a process."""

    returncode: int
    stdout: str
    stderr: str


def run(program: ModuleType, *arguments: str) -> Done:
    """Runs the program of a module as this rank of a job, and returns its end.

    An exception that would end it with a traceback is raised here.
    """
    argv = [str(program.__file__), *arguments]
    with contextlib.ExitStack() as stack:
        stdout, stderr = stack.enter_context(_captured())
        for change in (
            _environment_kept(),
            _limits_kept(),
            _handlers_kept(),
            _new_logging(stderr),
            _locks_released(),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(scratch_dir, "make", return_value=None),
            mock.patch.object(launcher_death, "fork_rank", return_value=None),
        ):
            stack.enter_context(change)
        code = _run(program, stdout)
        return Done(code, _read(stdout), _read(stderr))


def succeeded(done: Any) -> Any:
    """Returns how a program, of either kind, has ended: with the exit code 0."""
    assert done.returncode == 0, done.stderr
    return done


def assert_refused(
    done: Done | subprocess.CompletedProcess[str], message: str = ""
) -> None:
    """Checks that a program has refused its input, with a message in one line."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr, done.stderr


def _run(program: ModuleType, stdout: TextIO) -> int:
    """Returns the exit code of a program."""
    try:
        return base_program.run(program.main)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        if sys.stdout is not stdout:  # Ranks but the first print to nowhere.
            sys.stdout.close()


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
        yield stdout, stderr


def _read(file: TextIO) -> str:
    file.flush()
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Restores the environment, of which other threads may read the rest meanwhile."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


@contextlib.contextmanager
def _limits_kept() -> Iterator[None]:
    """Restores the processors of this thread and the number of files to open."""
    processors = os.sched_getaffinity(0)
    num_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)
        resource.setrlimit(resource.RLIMIT_NOFILE, num_files)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restores pytest's handlers of signals, and ends the thread that reads them."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    pytests_pipe = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if (pipe := signal.set_wakeup_fd(pytests_pipe)) != -1:
            os.close(pipe)


@contextlib.contextmanager
def _new_logging(stderr: TextIO) -> Iterator[None]:
    """Has messages go to standard error alone, as a program sets it up."""
    root, absl_handler = logging.getLogger(), absl_logging.get_absl_handler()
    loggers = (root, absl_logging.get_absl_logger())
    levels = [logger.level for logger in loggers]
    verbosity = absl_logging.get_verbosity()
    try:
        with (
            mock.patch.object(root, "handlers", []),
            mock.patch.object(absl_handler.python_handler, "stream", stderr),
        ):
            yield
    finally:
        absl_logging.set_verbosity(verbosity)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _locks_released() -> Iterator[None]:
    """Releases the locks of model_dirs, which a process keeps to its end."""
    taken: list[run_lock.RunLock] = []
    take = run_lock.RunLock.__init__

    def take_and_note(lock: run_lock.RunLock, *arguments: Any) -> None:
        take(lock, *arguments)
        taken.append(lock)

    try:
        with mock.patch.object(run_lock.RunLock, "__init__", take_and_note):
            yield
    finally:
        for lock in taken:
            lock.release()
