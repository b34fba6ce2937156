"""Signals that ask a run to leave: it saves after the next step, and exits."""

import os
import signal
import time
from types import FrameType

# EX_TEMPFAIL of sysexits.h, "try again": the same command goes on from there.
REQUEUE_EXIT_CODE = 75
# A launcher passes the terminal's SIGINT on, which the terminal itself sends as well.
_SAME_KEYSTROKE_SECONDS = 1.0


class Preempted(Exception):
    """All ranks have stopped, as one of them was asked to.

    Attributes:
        then: What the same command does when it is started again.
    """

    def __init__(self, sentence: str, then: str = "goes on from there") -> None:
        super().__init__(sentence)
        self.then = then


class StopSignals:
    """Notes SIGTERM, SIGUSR1 and SIGINT; the loop asks for them between two steps.

    However often they come, they are only noted; but a second SIGINT, from somebody at
    a terminal who won't wait, ends the process at once.

    Attributes:
        seen: Name of the first one that came, such as "SIGTERM"; empty before.
    """

    def __init__(self) -> None:
        """Notes them from now on. To be made in the main thread."""
        self.seen = ""
        self._seen_at = 0.0
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.seen:
            self.seen = signal.Signals(number).name
            self._seen_at = time.monotonic()
        elif (
            number == signal.SIGINT
            and time.monotonic() - self._seen_at > _SAME_KEYSTROKE_SECONDS
        ):
            os._exit(128 + number)
