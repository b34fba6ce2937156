"""The programs, called inside the tests' own ranks instead of started by mpirun.

A start costs each rank some five seconds, most of it for TensorFlow. What a program
does before and after its `main` is checked by the real jobs of tests/jobs and
tests/fault: watchdogs, the exit code of mpirun, locks that end with a process.
"""

import contextlib
import gc
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from unittest import mock

from resnet.distributed.communicator import Communicator
from resnet.hardware import placement
from resnet.hardware.placement import ProcessInfo
from tests import in_process
from tests.in_process import Done
from tests.parallel.lockstep import Lockstep

ALONE = ProcessInfo()
_abort_alone = Communicator.abort


class Aborted(AssertionError):
    """A rank would have ended the job by itself."""


def run(
    lockstep: Lockstep,
    program: ModuleType,
    arguments: Sequence[str],
    is_alone: bool = False,
    code: int = 0,
) -> Done:
    """Runs a program on all ranks, or on rank 0 as a job of one rank; returns its end.

    What the ranks have printed is one after the other in it. The module of the program
    has `run()`, and it must have that exit code.
    """
    own: Done | None = None
    failure = None
    if lockstep.rank == 0 or not is_alone:
        try:
            own = _run(program, arguments, is_alone)
        except Exception:
            failure = traceback.format_exc()
    failures = lockstep.failures(f"the end of {program.__name__}", failure)
    assert not any(failures), "\n".join(filter(None, failures))
    ends = [one for one in lockstep.gather(own) if one is not None]
    assert {end.returncode for end in ends} == {code}, str(ends)
    return Done(
        code, "".join(end.stdout for end in ends), "".join(end.stderr for end in ends)
    )


def _run(program: ModuleType, arguments: Sequence[str], is_alone: bool) -> Done:
    """Returns how the program has ended on this rank."""
    with contextlib.ExitStack() as stack:
        for name, replacement in (("start_watchdog", _no_watchdog), ("abort", _abort)):
            stack.enter_context(mock.patch.object(Communicator, name, replacement))
        if is_alone:
            stack.enter_context(
                mock.patch.object(placement, "find_process_info", return_value=ALONE)
            )
        done = in_process.run(program, *arguments)
    gc.collect()  # Networks and graphs.
    return done


def _no_watchdog(communicator: Any, *arguments: Any) -> None:
    """There is none: it would end the tests after the program's end."""


def _abort(communicator: Communicator, exit_code: int, reason: str) -> None:
    if communicator.num_ranks == 1:
        _abort_alone(communicator, exit_code, reason)
    raise Aborted(f"exit code {exit_code}: {reason}")
