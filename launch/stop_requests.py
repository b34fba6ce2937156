"""The commands that a program runs, and the signals that ask it to stop.

The program forwards the signals, so that whatever it has started stops too.
"""

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import FrameType

from resnet.base.errors import UserError
from resnet.runtime import preemption
from resnet.watchdog import proc

_POLL_SECONDS = 0.05  # Interval at which waiting commands look for a signal.
# What lines begin with in which Hydra or srun say where they are, but not why.
_OF_LAUNCHER = ("[mpiexec@", "[proxy:", "=", "srun: error: ")
_ENDING_SECONDS = 3.0  # Time for a command to end after a signal before the next one.


@dataclass(frozen=True)
class Completed:
    """A command that has ended."""

    exit_code: int  # 128 and the number of the signal that has ended it.
    stdout: str
    stderr: str
    timed_out: bool = False  # Whether it was ended because it took too long.

    @property
    def reason(self) -> str:
        """The line of its standard error that says why it has failed.

        What launchers say of themselves comes after it.
        """
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        said = [line for line in lines if not line.startswith(_OF_LAUNCHER)]
        errors = [line for line in said if line.startswith("error")]
        return (errors or said[-1:] or lines[:1] or ["no message"])[0]


class StopRequests:
    """The signals that ask this program to stop, which it forwards to its commands.

    Attributes:
        seen: Numbers of the signals that have arrived.
    """

    def __init__(self) -> None:
        """Prepares the object; signals are caught after `catch`."""
        self.seen: list[int] = []
        self._children: list[subprocess.Popen[bytes]] = []

    def catch(self) -> None:
        """Catches the signals from now on."""
        preemption.catch_stop_signals(self._record)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # The terminal was closed. Hydra would die of it.
            preemption.discard_output_to_closed_terminal()
            number = signal.SIGTERM
        self.seen.append(number)
        for child in list(self._children):
            child.send_signal(number)

    def start(
        self,
        words: Sequence[str],
        is_captured: bool = False,
        unset: Collection[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Starts a command, to which signals are forwarded; `finish` must be called.

        It runs in a session of its own. Otherwise mpirun would get SIGINT twice, from
        the terminal and from this program.

        Raises:
            UserError: If there is no such program.
        """
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_captured else None,
                stderr=subprocess.PIPE if is_captured else None,
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if k not in unset},
                # If this program is killed, the command is stopped too: nobody would
                # restart it, and a second supervisor would find the folder locked.
                preexec_fn=functools.partial(
                    proc.send_signal_at_parents_end, signal.SIGTERM, os.getpid()
                ),
            )
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise UserError(f"{words[0]} can't be run: {reason}.") from error
        self._children.append(child)
        for number in self.seen:  # Signals that arrived while it was being started.
            child.send_signal(number)
        return child

    def finish(self, child: subprocess.Popen[bytes]) -> int:
        """Waits for a command that `start` has started; returns its exit code."""
        code = child.wait()
        self._children.remove(child)
        return code if code >= 0 else 128 - code

    def run(self, words: Sequence[str]) -> int:
        """Runs a command, to which signals are forwarded; returns its exit code.

        Raises:
            UserError: If there is no such program.
        """
        return self.finish(self.start(words))

    def run_captured(
        self, words: Sequence[str], seconds: float, unset: Collection[str] = ()
    ) -> Completed:
        """Runs a command, and returns what it prints. Threads may call it.

        It has nothing to save, so it is killed if it doesn't end soon after a signal.

        Raises:
            UserError: If there is no such program.
        """
        child = self.start(words, is_captured=True, unset=unset)
        end_at = time.monotonic() + seconds
        timed_out = False
        while True:
            try:
                stdout, stderr = child.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if self.seen:
                    end_at = min(end_at, time.monotonic() + _ENDING_SECONDS)
            if time.monotonic() > end_at:
                timed_out = True
                stdout, stderr = _end(child)
                break
        code = self.finish(child)
        return Completed(
            code,
            stdout.decode(errors="replace"),
            stderr.decode(errors="replace"),
            timed_out,
        )

    def pause(self, seconds: float) -> None:
        """Waits for a time, or until a signal arrives."""
        deadline = time.monotonic() + seconds
        while not self.seen and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def _end(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Ends a command that takes too long; returns what it has printed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.communicate(timeout=_ENDING_SECONDS)
    for pipe in (child.stdout, child.stderr):
        if pipe:  # Something that it has started still has it open.
            pipe.close()
    return b"", b""
