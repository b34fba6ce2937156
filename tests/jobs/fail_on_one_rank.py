"""Rank 1 alone runs into something, or is the last one to end; argument: what."""

import os
import signal
import sys
import time

from resnet.base.errors import UserError
from resnet.runtime import program
from resnet.runtime.preemption import Preempted, StopSignals


def main(argv, place, communicator):
    what = argv[1] if place.rank == 1 else ""
    with communicator.collective_errors():
        if what == "agreed":
            raise UserError("the disk of rank 1 must hold the records; it is empty")
    if what == "user":
        raise UserError("rank 1 has failed")
    if what == "bug":
        raise IndexError("a bug of rank 1")
    if what == "sighup":  # UCX would take the signal for itself.
        os.kill(os.getpid(), signal.SIGHUP)
    if what == "late":
        program.at_exit(lambda: print("the end of rank 1", file=sys.stderr))
        program.at_exit(lambda: time.sleep(1))
    if any(communicator.allgather(SIGNALS.seen)):  # Where the others would wait.
        raise Preempted("stopped")
    program.require_exit_at_once()


SIGNALS = StopSignals()
sys.exit(program.run(main, sys.argv))
