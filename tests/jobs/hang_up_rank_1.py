"""Rank 1 gets SIGHUP after MPI has been loaded; says whether that is a stop request."""

import os
import signal
import sys

from resnet.runtime import program
from resnet.runtime.preemption import Preempted, StopSignals


def main(argv, process, communicator):
    if process.rank == 1:
        os.kill(os.getpid(), signal.SIGHUP)
    if any(communicator.allgather(SIGNALS.seen)):
        raise Preempted("stopped")


SIGNALS = StopSignals()
sys.exit(program.run(main, sys.argv))
