import os
import resource
import signal
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from absl import logging

from eval import resnet_eval
from launch import place_shards
from resnet import resnet_main
from resnet.runtime.run_lock import RunLock
from tests import in_process
from tests.in_process import assert_refused


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


def test_an_end_without_an_exit_code_is_0_and_an_exception_is_raised():
    assert in_process.run(program(sys.exit)).returncode == 0
    before = state()
    with pytest.raises(ZeroDivisionError):
        in_process.run(program(lambda: print(1 / 0)))
    assert state() == before


def test_the_lock_of_a_folder_ends_with_the_program(tmp_path):
    in_process.run(program(lambda: print(RunLock(tmp_path))))
    RunLock(tmp_path).release()


def test_a_program_knows_neither_the_flags_of_others_nor_those_of_its_last_run():
    for flag, owner, other in (
        ("--recipe=digits", resnet_main, resnet_eval),
        ("--watch", resnet_eval, resnet_main),
        ("--num_nodes=2", place_shards, resnet_eval),
    ):
        assert_refused(in_process.run(owner, flag), "--data_dir is required")
        assert_refused(in_process.run(other, flag), "Unknown command line flag")
    assert_refused(in_process.run(resnet_main, "--use_tpu"), "--use_tpu must be False")
    assert_refused(in_process.run(resnet_main), "--data_dir is required")
