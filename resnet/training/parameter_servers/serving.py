"""Ranks that serve or work: they look after their child process until the job ends."""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from absl import logging

from resnet.base.errors import UserError
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import Threads
from resnet.runtime.preemption import StopSignals, stop_requested
from resnet.training.parameter_servers import private_ports
from resnet.training.parameter_servers.private_ports import Guard
from resnet.training.parameter_servers.roles import SERVER, Role
from resnet.training.parameter_servers.task_server import HEARTBEAT_SECONDS

_POLL_SECONDS = 0.1
START_SECONDS = 120.0  # Importing TensorFlow from a slow network disk takes long.
MOST_RESTARTS = 5  # Of a worker, within the time in which one that hangs has as many.
_REPOSITORY = Path(__file__).resolve().parents[3]
_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from resnet.training.parameter_servers.task_server import main
main()
"""


class Child:
    """A child process with a TensorFlow server, and how it is doing."""

    def __init__(self, role: Role, threads: Threads, guard: Guard) -> None:
        """Starts the process, whose server listens at the port of the guard."""
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _START,
                str(_REPOSITORY),
                f"--job={role.job}",
                f"--index={role.index}",
                f"--parent={os.getpid()}",
                f"--num_intra_threads={threads.num_intra_threads}",
                f"--num_inter_threads={threads.num_inter_threads}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Signals to the job are for its ranks.
        )
        assert self._process.stdin is not None  # noqa: S101 - They are pipes.
        assert self._process.stdout is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):  # It has ended, as `why_lost` tells.
            self._process.stdin.write(json.dumps(guard).encode() + b"\n")
        self._output = self._process.stdout.fileno()
        self._heard_at = self._asked_at = time.monotonic()
        self._has_started = False

    def await_start(self, role: Role) -> None:
        """Waits until the server listens; raises UserError if it won't."""
        failure = ""
        if not select.select([self._output], [], [], START_SECONDS)[0]:
            failure = f"it did not listen within {START_SECONDS:.0f} s"
        elif not os.read(self._output, 1):
            failure = f"it ended with {self._process.wait()}"
        if failure:
            raise UserError(
                f"the TensorFlow server of {role.job} {role.index} must start;"
                f" {failure}. Its messages are above."
            )
        self._heard_at, self._has_started = time.monotonic(), True

    def why_lost(self, stall_seconds: float) -> str:
        """Returns why the child can't be waited for any longer; empty if it can.

        It may be silent for `stall_seconds` once it has started. After a break of half
        of it, in which the job may have been suspended, it has as long again.
        """
        code = self._process.poll()
        if code is not None:
            was_killed = f"was killed by signal {-code}"
            return was_killed if code < 0 else f"has exited with {code}"
        while select.select([self._output], [], [], 0)[0]:
            if not os.read(self._output, 4096):
                break
            self._heard_at, self._has_started = time.monotonic(), True
        now = time.monotonic()
        if now - self._asked_at > stall_seconds / 2:
            self._heard_at = now
        self._asked_at = now
        silence = now - self._heard_at
        allowed = stall_seconds + HEARTBEAT_SECONDS  # Since the next sign was due.
        if silence > (allowed if self._has_started else START_SECONDS):
            return f"has been silent for {silence:.0f} s"
        return ""

    def kill(self) -> None:
        """Ends the process, also a stopped one."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Restarts:
    """Counts the restarts of a worker, and limits those of one that always dies."""

    def __init__(self, stall_seconds: float) -> None:
        """Allows `MOST_RESTARTS` within the time that as many hanging starts take."""
        self._span_seconds = MOST_RESTARTS * (stall_seconds + START_SECONDS)
        self._times: list[float] = []

    def next(self, now: float) -> int:
        """Returns the number of a restart that is due, from 1; 0 if it is too many."""
        recent = [time for time in self._times if now - time < self._span_seconds]
        if len(recent) >= MOST_RESTARTS:
            return 0
        self._times.append(now)
        return len(self._times)

    def __str__(self) -> str:
        return f"{MOST_RESTARTS} restarts within {self._span_seconds / 60:.0f} minutes"


def serve(
    role: Role,
    threads: Threads,
    on_one_host: bool,
    communicator: Communicator,
    stall_seconds: float,
    signals: StopSignals,
) -> None:
    """Runs the child of this rank until rank 0 ends the job.

    A worker that has died, or is silent for `stall_seconds`, is killed and started
    again on the same port: the runtime takes it back, and another worker computes again
    what it computed. One that dies too often, or a parameter server that is lost, ends
    the job. Rank 0 is notified of the stop requests of this rank.

    Raises:
        AgreedError: On all ranks, if a server does not start.
        AgreedError, AgreedFailure, Preempted: As rank 0 ends the job.
    """
    with contextlib.ExitStack() as at_end:
        own = at_end.enter_context(private_ports.held_endpoint(role, on_one_host))
        guard = Guard.of(own, communicator.allgather(own)[1:])
        child = Child(role, threads, guard)
        at_end.callback(lambda: child.kill())
        with communicator.collective_errors():
            child.await_start(role)
        background = communicator.duplicate()
        endings: list[Exception | None] = []  # What all ranks are to raise.
        has_ended = threading.Event()

        def await_ending() -> None:
            endings.extend(background.allgather(None)[:1])
            has_ended.set()

        threading.Thread(target=await_ending, name="ending", daemon=True).start()
        has_notified, restarts = False, Restarts(stall_seconds)
        communicator.report_status(
            f"looking after its {role.job}", is_timed=False, waits_for_others=True
        )
        while not has_ended.wait(_POLL_SECONDS):
            if stop_requested(signals) and not has_notified:
                background.notify_rank_0()
                has_notified = True
            if not (reason := child.why_lost(stall_seconds)):
                continue
            number = 0 if role.job == SERVER else restarts.next(time.monotonic())
            if not number:
                communicator.abort(1, _why_over(role, reason, restarts))
            # With its number, since each text is printed once.
            logging.warning(
                "worker %d %s; it is restarted (restart %d)", role.index, reason, number
            )
            child.kill()
            child = Child(role, threads, guard)
        if endings[0] is not None:
            raise endings[0]


def _why_over(role: Role, reason: str, restarts: Restarts) -> str:
    """Returns the sentence with which a lost child ends the job."""
    if role.job == SERVER:
        return (
            f"error: parameter server {role.index} {reason}, and the weights since the"
            " last checkpoint are lost with it. The same command resumes from that"
            " checkpoint."
        )
    return (
        f"error: worker {role.index} {reason}, after the limit of {restarts}. Look for"
        " the reason on its host, such as too little memory. The same command resumes"
        " from the last checkpoint."
    )
