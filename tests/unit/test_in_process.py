import os
import resource
import signal
import sys
from collections.abc import Callable
from types import ModuleType

from absl import logging

from tests import in_process


def program(run: Callable[[], object]) -> ModuleType:
    module = ModuleType("program")
    module.__file__ = "program.py"
    module.main = lambda argv: run() or 0
    return module


def state() -> dict[str, object]:
    """Returns what a program may change in its process."""
    root, absl_logger = logging.logging.getLogger(), logging.get_absl_logger()
    return {
        "environment": dict(os.environ),
        "processors": os.sched_getaffinity(0),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "handlers": [
            signal.getsignal(number)
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        ],
        "logging": (logging.get_verbosity(), root.level, absl_logger.level),
        "log handlers": list(root.handlers),
        "argv": sys.argv,
        "output": (sys.stdout, sys.stderr),
    }


def test_what_a_program_changes_is_undone(monkeypatch):
    monkeypatch.setenv("KEPT", "a")
    monkeypatch.setenv("REMOVED", "b")

    def run() -> None:
        os.environ.update(KEPT="c", ADDED="d")
        del os.environ["REMOVED"]
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        logging.use_absl_handler()
        logging.set_verbosity(logging.INFO)
        assert sys.argv == ["program.py", "--added=f"]
        print("printed")
        logging.info("logged")
        os.write(2, b"written\n")
        sys.exit(3)

    before = state()
    done = in_process.run(program(run), "--added=f")
    assert state() == before
    assert (done.returncode, done.stdout) == (3, "printed\n")
    logged, written = done.stderr.splitlines()[-2:]  # Behind absl's, before flags.
    assert logged.endswith("] logged")
    assert written == "written"
