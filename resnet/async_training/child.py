"""The child process of a rank, in which a TensorFlow server runs."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from resnet.async_training.roles import Role
from resnet.hardware.placement import Threads

START_SECONDS = 120.0  # To import TensorFlow, from a slow network disk too.
_REPOSITORY = Path(__file__).resolve().parents[2]
_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from resnet.async_training.task_server import main
main()
"""


class ChildFailed(RuntimeError):
    """A child process that did not start."""


class Child:
    """A child process with a TensorFlow server, and how it is doing.

    Attributes:
        port: TCP port of the server.
    """

    def __init__(self, role: Role, threads: Threads, port: int = 0) -> None:
        """Starts the process, and waits until its server listens.

        Args:
            role: The role of this rank.
            threads: The threads of this rank.
            port: TCP port of the server; 0 for any free one.

        Raises:
            ChildFailed: If the server doesn't listen within two minutes.
        """
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _START, str(_REPOSITORY)),
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
        self._heard_at = time.monotonic()
        line = b""
        while not line.endswith(b"\n"):
            left = self._heard_at + START_SECONDS - time.monotonic()
            if left <= 0 or not select.select([self._output], [], [], left)[0]:
                self.kill()
                raise ChildFailed(f"it did not listen within {START_SECONDS:.0f} s")
            byte = os.read(self._output, 1)
            if not byte:
                raise ChildFailed(f"it ended with {self._process.wait()}")
            line += byte
        self.port = int(line)
        self._heard_at = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Returns the exit code, below 0 for a signal; None while it runs."""
        return self._process.poll()

    def seconds_silent(self) -> float:
        """Returns the seconds since the last heartbeat, having read what has come."""
        while select.select([self._output], [], [], 0)[0]:
            if not os.read(self._output, 4096):
                break
            self._heard_at = time.monotonic()
        return time.monotonic() - self._heard_at

    def kill(self) -> None:
        """Ends the process, also a stopped one."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
