"""Stop signals: a run that receives one saves after the next step, and exits."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import FrameType
from typing import Any, Protocol

from resnet.base.errors import UserError
from resnet.hardware import placement
from resnet.watchdog import proc

# EX_TEMPFAIL of sysexits.h: rerunning the same command resumes the run.
REQUEUE_EXIT_CODE = 75
# The terminal sends SIGINT to all processes, and the launcher forwards its own too.
_SAME_KEYSTROKE_SECONDS = 1.0
_POLL_SECONDS = 0.25  # How often a thread looks for the launcher's death or a stop.
_PRESS_AGAIN = " Press Ctrl-C again, a second later, to end at once, without saving."
# What to do after a stop: with a checkpoint, and before there can be one.
RESUME = "Rerun the same command to resume"
START_AGAIN = "Rerun the same command to start again"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


class Preempted(Exception):
    """All ranks have stopped, since one of them was asked to.

    `advice` is a sentence about what to do next, without its full stop; `step` is the
    last step of a training. `hosts` are those that a supervisor should leave out of the
    next start.
    """

    def __init__(
        self,
        reason: str,
        advice: str = RESUME,
        step: int | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        super().__init__(reason)
        self.advice, self.step, self.hosts = advice, step, tuple(hosts)


def catch_stop_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Installs a handler of stop signals; a SIGHUP that nohup ignores stays ignored."""
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def ignore_stop_signals() -> None:
    """Ignores further stop requests; to be called when the exit code is settled.

    While Python ends, it restores the default handlers, whose exit code is another.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _start_thread(name: str, target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


def _die_with(await_end_of_watchdog: Callable[[], None], wrapper: int) -> None:
    """Ends this process when both its rank wrapper and its watchdog have ended."""
    while os.getppid() == wrapper:
        time.sleep(_POLL_SECONDS)
    await_end_of_watchdog()
    os.kill(os.getpid(), signal.SIGKILL)


class StopSignals:
    """Records stop requests, which the training loop checks after each step.

    They are SIGTERM, SIGUSR1, SIGINT, and SIGHUP of a terminal that is closed; also the
    death of the launcher, after `outlive_launcher`. `seen` names the first one. Of the
    others, a second Ctrl-C (SIGINT) ends the process at once, also within a step.
    """

    def __init__(self, wrapper: int | None = None) -> None:
        """Installs the handlers; to be created in the main thread.

        `wrapper` is the process id of the rank wrapper (`launcher_death`), if any.
        """
        self.seen = ""
        self._wrapper = wrapper
        self._rank, self._stderr = 0, 2
        with contextlib.suppress(UserError, OSError):  # Of a start that will fail.
            self._rank = placement.find_process_info(os.environ).rank
            self._stderr = os.dup(2)  # While TensorFlow starts, 2 is another file.
        # Python calls handlers only between its own instructions, and then once for
        # equal signals. The numbers of all signals are in the pipe at once.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        _start_thread("signals", self._await_interrupts, reader)
        catch_stop_signals(self._record)

    @property
    def can_outlive_launcher(self) -> bool:
        """Whether this process survives the death of its launcher."""
        return self._wrapper is not None

    def outlive_launcher(self, await_end_of_watchdog: Callable[[], None]) -> None:
        """Turns the death of the launcher into SIGTERM, where it was SIGKILL.

        Without its watchdog, a rank that outlives the launcher could wait for a dead
        rank forever, and handle no signal. So a thread ends it if the watchdog has
        ended, for which the function waits; a stopped watchdog it has to continue.
        """
        if self._wrapper is None or self.seen == "SIGINT":
            return
        _start_thread("launcher-death", _die_with, await_end_of_watchdog, self._wrapper)
        proc.send_signal_at_parents_end(signal.SIGTERM, self._wrapper)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self._wrapper is not None and os.getppid() != self._wrapper:
            # Nobody reads the launcher's pipes. Ranks inherit each other's, so that
            # writing would block rather than fail.
            with open(os.devnull, "w") as nowhere:
                for descriptor in (1, 2):
                    os.dup2(nowhere.fileno(), descriptor)
        if not self.seen:
            self.seen = signal.Signals(number).name

    def _await_interrupts(self, reader: int) -> None:
        """Ends the process at a second Ctrl-C, whatever the main thread does."""
        first_at = math.inf
        with open(reader, "rb", buffering=0) as numbers:
            while byte := numbers.read(1):
                if (number := byte[0]) not in STOP_SIGNALS:
                    continue
                now = time.monotonic()
                if math.isinf(first_at):
                    first_at, name = now, signal.Signals(number).name
                    advice = _PRESS_AGAIN if number == signal.SIGINT else ""
                    self._tell(f"{name}: stopping before the next step.{advice}")
                if number != signal.SIGINT:
                    continue
                if now - first_at > _SAME_KEYSTROKE_SECONDS:
                    self._tell(
                        "Ended at once by Ctrl-C, without saving (exit code 130)."
                    )
                    os._exit(128 + number)
                if self._wrapper is not None and os.getppid() == self._wrapper:
                    # A second one kills the launcher.
                    proc.send_signal_at_parents_end(signal.SIGKILL, self._wrapper)

    def _tell(self, sentence: str) -> None:
        """Prints a sentence on rank 0, unless nobody reads the launcher's pipes."""
        if self._rank == 0 and self._wrapper in (None, os.getppid()):
            start = "\n" if os.isatty(self._stderr) else ""  # Below a progress bar.
            with contextlib.suppress(OSError):
                os.write(self._stderr, f"{start}{sentence}\n".encode())


def call_until_stopped(
    function: Callable[[], Any], signals: "SeenSignals | None"
) -> Any:
    """Returns what a function returns inside which no handler of a signal is called.

    It runs in a thread of its own. At a stop request that goes on, so that the process
    has to end at once (`program.require_exit_at_once`).

    Raises:
        Preempted: If a stop is requested before the function returns.
    """
    future = ThreadPoolExecutor(1).submit(function)
    while not wait([future], _POLL_SECONDS).done:
        if stop_requested(signals):
            raise Preempted("stopped before the training began", START_AGAIN)
    return future.result()


class SeenSignals(Protocol):
    """What knows of stop requests."""

    @property
    def seen(self) -> str:
        """A description of the first one; empty before."""


def stop_requested(signals: SeenSignals | None) -> bool:
    """Returns whether this process was asked to stop; False without `signals`."""
    return signals is not None and bool(signals.seen)
