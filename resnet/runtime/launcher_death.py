"""Lets a rank outlive MPICH's launcher, so that it saves when a terminal is closed.

The kernel sends SIGHUP to mpirun when its terminal is closed, and mpirun dies of it.
Its proxies notice that, and at once send SIGKILL to the process groups of all processes
that they have started.
"""

import contextlib
import os
import resource
import signal
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn

from resnet.runtime.preemption import STOP_SIGNALS
from resnet.watchdog import proc

# Starts with a launcher's name, behind which `metrics.progress` looks for a terminal.
WRAPPER_NAME = "mpirun-rank"


def fork_rank() -> int | None:
    """Continues in a child process, which Hydra doesn't kill together with its own.

    The child is in a session of its own, and has its parent's connection to the proxy.
    The parent remains as the wrapper of the rank: it forwards the signals that ask to
    stop, and ends as the rank does. If it dies, so does the rank, until that calls
    `StopSignals.outlive_launcher`.

    To be called before threads are started. Returns the process id of the wrapper; None
    in a process that MPICH's mpirun has not started, which is left as it is.
    """
    is_hydras = {"PMI_FD", "MPI_LOCALRANKID"} <= set(os.environ)
    if not is_hydras or any(name.startswith("I_MPI_") for name in os.environ):
        return None  # Intel MPI, which has a Hydra too, is untested.
    wrapper, launcher = os.getpid(), os.getppid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    rank = os.fork()
    if rank == 0:
        os.setsid()
        proc.send_signal_at_parents_end(signal.SIGKILL, wrapper)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return wrapper
    _act_as_wrapper(rank, launcher, mask)


def _act_as_wrapper(rank: int, launcher: int, mask: Iterable[int]) -> NoReturn:
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)

    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, forward)
    proc.set_process_name(WRAPPER_NAME)
    proc.send_signal_at_parents_end(signal.SIGKILL, launcher)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _, status = os.waitpid(rank, 0)
    if os.WIFSIGNALED(status):  # Hydra reports the signal.
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # The rank has written it.
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
