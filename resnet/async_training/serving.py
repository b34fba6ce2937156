"""Ranks that serve or work: they look after their child process until the job ends."""

import threading
import time
from typing import Any

from absl import logging

from resnet.async_training.child import Child, ChildFailed
from resnet.async_training.ending import Ending
from resnet.async_training.roles import SERVER, Role
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import Threads
from resnet.watchdog import client

_POLL_SECONDS = 0.1


class ServerLost(RuntimeError):
    """A parameter server that has died, and with it the weights of the run."""


def serve(
    role: Role, threads: Threads, communicator: Communicator, stall_seconds: float
) -> None:
    """Runs the child of this rank until rank 0 ends the job.

    A worker that has died, or that is silent for too long, is killed and started again
    on the same port: the runtime takes it back. What it computed is computed again by
    another worker.

    Args:
        role: The role of this rank, not that of rank 0.
        threads: The threads of this rank.
        communicator: The ranks.
        stall_seconds: The time in seconds after which a silent child counts as lost.

    Raises:
        ServerLost: If a parameter server is lost.
        AgreedError, AgreedFailure, Preempted: As rank 0 ends the job.
    """
    child: Child | None = None
    try:
        failure = ""
        try:
            child = Child(role, threads)
        except ChildFailed as error:
            failure = str(error)
        endpoint = None if child is None else (client.own_addresses(), child.port)
        communicator.allgather((role.job, role.index, endpoint, failure))
        ending = _AwaitedEnding(communicator)
        communicator.report_status(f"looking after its {role.job}", is_timed=False)
        while not ending.has_come(_POLL_SECONDS):
            if child is None or (reason := _why_lost(child, stall_seconds)):
                port = 0 if child is None else child.port
                if child is not None:
                    child.kill()
                    if role.job == SERVER:
                        raise ServerLost(
                            f"parameter server {role.index} {reason}, and with it the"
                            " weights since the last checkpoint are lost. The same"
                            " command resumes from that checkpoint."
                        )
                    logging.warning(
                        "worker %d %s: it is started again", role.index, reason
                    )
                child = _restarted(role, threads, port)
        ending.value.enact()
    finally:
        if child is not None:
            child.kill()


def _why_lost(child: Child, stall_seconds: float) -> str:
    """Returns why a child can't be waited for any longer; empty if it can."""
    code = child.exit_code()
    if code is not None:
        return (
            f"was killed by signal {-code}" if code < 0 else f"has exited with {code}"
        )
    silence = child.seconds_silent()
    if silence > stall_seconds:
        return f"has been silent for {silence:.0f} s"
    return ""


def _restarted(role: Role, threads: Threads, port: int) -> Child | None:
    """Returns a new child; None if it can't be started now."""
    try:
        return Child(role, threads, port)
    except ChildFailed as error:
        logging.warning("worker %d can't be started: %s", role.index, error)
        time.sleep(1)
        return None


class _AwaitedEnding:
    """The ending of the job, for which a thread of its own waits."""

    def __init__(self, communicator: Communicator) -> None:
        self._background = communicator.duplicate()
        self._came = threading.Event()
        self.value = Ending()
        threading.Thread(target=self._wait, name="ending", daemon=True).start()

    def _wait(self) -> None:
        endings: list[Any] = self._background.allgather(None)
        self.value = endings[0]
        self._came.set()

    def has_come(self, seconds: float) -> bool:
        """Returns whether the job has ended, after waiting up to `seconds` for it."""
        return self._came.wait(seconds)
