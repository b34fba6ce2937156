"""Ranks that serve or work: they look after their child process until the job ends."""

import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from absl import logging

from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import Threads
from resnet.runtime.preemption import StopSignals, stop_requested
from resnet.training.parameter_servers.roles import SERVER, Role
from resnet.training.parameter_servers.task_server import HEARTBEAT_SECONDS
from resnet.watchdog import client

_POLL_SECONDS = 0.1
START_SECONDS = 120.0  # Importing TensorFlow from a slow network disk takes long.
_REPOSITORY = Path(__file__).resolve().parents[3]
_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from resnet.training.parameter_servers.task_server import main
main()
"""


class ChildFailed(RuntimeError):
    """A child process did not start."""


class Child:
    """A child process with a TensorFlow server, and how it is doing."""

    def __init__(self, role: Role, threads: Threads, port: int = 0) -> None:
        """Starts the process, whose server gets any free TCP port unless one is set."""
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _START,
                str(_REPOSITORY),
                f"--job={role.job}",
                f"--index={role.index}",
                f"--port={port}",
                f"--parent={os.getpid()}",
                f"--num_intra_threads={threads.num_intra_threads}",
                f"--num_inter_threads={threads.num_inter_threads}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Signals to the job are for its ranks.
        )
        assert self._process.stdout is not None  # noqa: S101 - It is a pipe.
        self._output = self._process.stdout.fileno()
        self._heard_at = self._asked_at = time.monotonic()
        self._has_started = False

    def await_port(self) -> int:
        """Returns the TCP port of the server; raises ChildFailed if it won't listen."""
        line = b""
        while not line.endswith(b"\n"):
            left = self._heard_at + START_SECONDS - time.monotonic()
            if left <= 0 or not select.select([self._output], [], [], left)[0]:
                raise ChildFailed(f"it did not listen within {START_SECONDS:.0f} s")
            byte = os.read(self._output, 1)
            if not byte:
                raise ChildFailed(f"it ended with {self._process.wait()}")
            line += byte
        self._heard_at, self._has_started = time.monotonic(), True
        return int(line)

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


def serve(
    role: Role,
    threads: Threads,
    communicator: Communicator,
    stall_seconds: float,
    signals: StopSignals,
) -> None:
    """Runs the child of this rank until rank 0 ends the job.

    A worker that has died, or is silent for `stall_seconds`, is killed and started
    again on the same port: the runtime takes it back, and another worker computes again
    what it computed. A parameter server that is lost ends the job. Rank 0 is notified
    of the stop requests of this rank.

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
        endings: list[Exception | None] = []  # What all ranks are to raise.
        has_ended = threading.Event()

        def await_ending() -> None:
            endings.extend(background.allgather(None)[:1])
            has_ended.set()

        threading.Thread(target=await_ending, name="ending", daemon=True).start()
        has_notified = False
        communicator.report_status(
            f"looking after its {role.job}", is_timed=False, waits_for_others=True
        )
        while not has_ended.wait(_POLL_SECONDS):
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
        if endings[0] is not None:
            raise endings[0]
    finally:
        child.kill()
