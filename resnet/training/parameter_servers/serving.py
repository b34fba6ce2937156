"""Ranks that serve or work: they look after their child process until the job ends."""

import threading
from typing import Any

from absl import logging

from resnet.distributed.communicator import BackgroundCommunicator, Communicator
from resnet.hardware.placement import Threads
from resnet.runtime.preemption import StopSignals, stop_requested
from resnet.training.parameter_servers.child import Child, ChildFailed
from resnet.training.parameter_servers.job_end import Ending
from resnet.training.parameter_servers.roles import SERVER, Role
from resnet.watchdog import client

_POLL_SECONDS = 0.1


def serve(
    role: Role,
    threads: Threads,
    communicator: Communicator,
    stall_seconds: float,
    signals: StopSignals,
) -> None:
    """Runs the child of this rank until rank 0 ends the job.

    A worker that has died, or that is silent for too long, is killed and started again
    on the same port: the runtime takes it back. What it computed is computed again by
    another worker. A parameter server that is lost ends the job.

    Args:
        role: The role of this rank, not that of rank 0.
        threads: The threads of this rank.
        communicator: The ranks.
        stall_seconds: The time in seconds after which a silent child counts as lost.
        signals: The stop requests of this rank, of which rank 0 is notified.

    Raises:
        AgreedError, AgreedFailure, Preempted: As rank 0 ends the job.
    """
    child, port, failure = Child(role, threads), 0, ""
    try:
        try:
            port = child.await_port()
        except ChildFailed as error:
            failure = str(error)
        endpoint = (client.own_addresses(), port)
        communicator.allgather((role.job, role.index, endpoint, failure))
        background = communicator.duplicate()
        ending = _AwaitedEnding(background)
        has_notified = False
        communicator.report_status(
            f"looking after its {role.job}", is_timed=False, waits_for_others=True
        )
        while not ending.has_come(_POLL_SECONDS):
            if stop_requested(signals) and not has_notified:
                background.notify_rank_0()
                has_notified = True
            reason = "" if failure else child.why_lost(stall_seconds)
            if reason and role.job == SERVER:
                communicator.abort(
                    1,
                    f"error: parameter server {role.index} {reason}, and the weights"
                    " since the last checkpoint are lost with it. The same command"
                    " resumes from that checkpoint.",
                )
            elif reason:
                logging.warning("worker %d %s; it is restarted", role.index, reason)
                child.kill()
                child = Child(role, threads, port)
        ending.value.raise_on_rank()
    finally:
        child.kill()


class _AwaitedEnding:
    """The ending of the job, for which a thread of its own waits."""

    def __init__(self, background: BackgroundCommunicator) -> None:
        self._background = background
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
