"""The commands that a program runs, their output, and the signals that ask it to stop.

The program forwards the signals, so that whatever it has started stops too.
"""

import contextlib
import functools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO

from resnet.base.errors import UserError
from resnet.base.output import write
from resnet.runtime import preemption
from resnet.watchdog import proc

_POLL_SECONDS = 0.05  # Interval at which waiting commands look for a signal.
# What lines begin with in which Hydra or srun say where they are, but not why.
_OF_LAUNCHER = ("[mpiexec@", "[proxy:", "=", "srun: error: ")
_ENDING_SECONDS = 3.0  # Time for a command to end after a signal before the next one.
# A line that begins so is of the supervisor, which may have changed the ranks' hosts.
_OF_SUPERVISOR = b"supervise: "
# A process that outlives its launcher has the pipe open. What it prints is of no use.
_DRAIN_SECONDS = 5.0


@dataclass(frozen=True)
class Completed:
    """A command that has ended."""

    exit_code: int  # 128 and the number of the signal that has ended it.
    stdout: str
    stderr: str
    timed_out: bool = False  # Whether it was ended because it took too long.

    @property
    def reason(self) -> str:
        """The line of its standard error that says why it has failed."""
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
        self.seen: list[int] = []
        self._children: list[subprocess.Popen[bytes]] = []

    def catch(self) -> None:
        """Catches the signals from now on."""
        preemption.catch_stop_signals(self._record)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # The terminal was closed. Hydra would die of it.
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

        It runs in a session of its own, or mpirun would get SIGINT from the terminal,
        too. UserError if there is no such program.
        """
        output = subprocess.PIPE if is_captured else None
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
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

    def run_captured(
        self, words: Sequence[str], seconds: float, unset: Collection[str] = ()
    ) -> Completed:
        """Runs a command of `start`, and returns what it prints. Threads may call it.

        It has nothing to save, so it is killed if it doesn't end soon after a signal.
        """
        child = self.start(words, is_captured=True, unset=unset)
        end_at = time.monotonic() + seconds
        output, timed_out = None, False
        while output is None:
            try:
                output = child.communicate(timeout=_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if self.seen:
                    end_at = min(end_at, time.monotonic() + _ENDING_SECONDS)
                if time.monotonic() > end_at:
                    timed_out = True
                    output = _end(child)
        stdout, stderr = (data.decode(errors="replace") for data in output)
        return Completed(self.finish(child), stdout, stderr, timed_out)

    def run_labelled(
        self, words: Sequence[str], pattern: str, hosts: Mapping[int, str]
    ) -> int:
        """Runs a job whose output gets `Labels`; returns its exit code."""
        child = self.start(words, is_captured=True)
        threads = [
            threading.Thread(
                target=_copy, args=(pipe, target, Labels(pattern, hosts)), daemon=True
            )
            for pipe, target in ((child.stdout, 1), (child.stderr, 2))
        ]
        for thread in threads:
            thread.start()
        code = self.finish(child)
        for thread in threads:
            thread.join(_DRAIN_SECONDS)
        return code

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


class Labels:
    """Turns the labels of a launcher into rank and host, and joins pieces of lines.

    Hydra labels each piece of a line, and those of several ranks may alternate.
    """

    def __init__(self, pattern: str, hosts: Mapping[int, str]) -> None:
        """Takes `Dialect.label`, empty without launcher, and the hosts of ranks."""
        self._pattern = re.compile(pattern.encode()) if pattern else None
        self._hosts = dict(hosts)
        self._texts: dict[bytes, bytes] = {}  # Unfinished lines, by their labels.
        self._unread = b""

    def translate(self, data: bytes) -> bytes:
        """Returns the lines that a piece of the stream completes, with their labels."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        return b"".join(map(self._translate_line, lines))

    def rest(self) -> bytes:
        """Returns the lines without an end, at the end of the stream."""
        last = self._translate_line(self._unread) if self._unread else b""
        texts = self._texts.items()
        return last + b"".join(label + text + b"\n" for label, text in texts)

    def _translate_line(self, line: bytes) -> bytes:
        """Returns a line of the stream with the beginning that its writer has left."""
        label, begin = b"", 0  # The label of what launcher and supervisor print.
        if self._pattern is None:
            label = self._label({"rank": b"0"})
        else:
            for match in self._pattern.finditer(line):
                if piece := line[begin : match.start()]:
                    self._texts[label] = self._texts.get(label, b"") + piece
                label, begin = self._label(match.groupdict()), match.end()
        if line.startswith(_OF_SUPERVISOR):
            label, self._hosts = b"", {}
        return label + self._texts.pop(label, b"") + line[begin:] + b"\n"

    def _label(self, groups: Mapping[str, bytes]) -> bytes:
        rank = int(groups["rank"])
        host = groups["host"].decode() if "host" in groups else self._hosts.get(rank)
        return f"[{rank} {host}] ".encode() if host else f"[{rank}] ".encode()


def _copy(source: IO[bytes], target: int, labels: Labels) -> None:
    """Copies a stream with labels; goes on reading if nobody reads the copy."""
    data = None
    with source:
        while data != b"":
            data = os.read(source.fileno(), 1 << 16)
            labelled = labels.translate(data) if data else labels.rest()
            write(target, labelled)
