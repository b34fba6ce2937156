"""Runs the main function of a distributed program, and ends it with an exit code."""

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from absl import logging as absl_logging

from resnet.base import errors, limits
from resnet.base.cli import start_log
from resnet.base.errors import EXIT_CODE, NodeError, UserError
from resnet.distributed import communicator as distributed
from resnet.distributed.communicator import Communicator
from resnet.hardware import placement
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import host_warnings, preemption
from resnet.runtime.preemption import REQUEUE_EXIT_CODE, Preempted

Main = Callable[[Sequence[str], ProcessInfo, Communicator], None]

_at_exit: list[Callable[[], object]] = []
_exits_at_once = False


def run(main: Main, argv: Sequence[str]) -> int:
    """Runs `main(argv, process, communicator)`, and returns the exit code.

    A UserError is printed as one sentence, with exit code 2: by rank 0 if all ranks
    know of it (`Communicator.collective_errors`), and every rank exits by itself; else
    by the rank, which aborts the job. Any other exception aborts it with its traceback
    and exit code 1. A failure that all ranks know of is one sentence and exit code 1,
    preemption one and `REQUEUE_EXIT_CODE`. When `main` has ended, signals that ask the
    program to stop have no effect.
    """
    try:
        process = placement.find_process_info(os.environ)
        ranks = process.num_local_ranks, process.local_rank
        if shortage := limits.describe_shortage(*ranks):
            raise UserError(shortage)
        communicator = distributed.connect(process)
    except UserError as error:
        if isinstance(error, NodeError) and process.local_rank != 0:
            time.sleep(distributed.FORWARDING_SECONDS)  # The first rank is heard.
        else:
            print(f"error: {error}", file=sys.stderr, flush=True)
        distributed.abort_unconnected(os.environ, EXIT_CODE)
        return EXIT_CODE
    start_log(absl_logging.INFO if process.rank == 0 else absl_logging.ERROR)
    if process.rank != 0:
        nowhere = open(os.devnull, "w", errors="replace")  # noqa: SIM115 - To the end.
        sys.stdout = nowhere
    try:
        try:
            with host_warnings.reported(communicator):
                main(argv, process, communicator)
        finally:
            preemption.ignore_stop_signals()
        return _end(communicator, 0)
    except distributed.AgreedError as error:
        return _end(communicator, EXIT_CODE, f"error: {error}")
    except distributed.AgreedFailure as error:
        return _end(communicator, 1, f"error: {error}")
    except Preempted as stop:
        message = f"{stop}. {stop.advice} (exit code {REQUEUE_EXIT_CODE})."
        return _end(communicator, REQUEUE_EXIT_CODE, message)
    except UserError as error:
        communicator.abort(EXIT_CODE, f"error on rank {process.rank}: {error}")
    except Exception as error:
        if sentence := errors.describe_failed_import(error):
            communicator.abort(EXIT_CODE, f"error on rank {process.rank}: {sentence}")
        reason = f"rank {process.rank} failed:\n{traceback.format_exc()}"
        communicator.abort(1, reason)
    return 1


def _end(communicator: Communicator, exit_code: int, message: str = "") -> int:
    """Returns the exit code, after rank 0 has printed a message that all ranks know."""
    if message:
        if communicator.rank == 0:
            print(message, file=sys.stderr, flush=True)
        communicator.allgather(None)  # No rank exits before the message is printed.
    communicator.deregister()
    if _exits_at_once:
        communicator.finalize()
        for function in reversed(_at_exit):
            function()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def at_exit(function: Callable[[], object]) -> None:
    """Registers a function to be called when the process ends; the last one first."""
    atexit.register(function)
    _at_exit.append(function)


def require_exit_at_once() -> None:
    """Makes the process end without Python's finalization.

    With a connection to a lost TensorFlow server, that would wait for it forever.
    """
    global _exits_at_once
    _exits_at_once = True
