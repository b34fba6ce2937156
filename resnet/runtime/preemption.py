"""Stop requests: a run that gets such a signal saves after the next step and exits."""

import os
import signal
import time
from types import FrameType

# EX_TEMPFAIL of sysexits.h: rerunning the same command resumes the run.
REQUEUE_EXIT_CODE = 75
# The terminal sends SIGINT to all processes, and the launcher forwards its own too.
_SAME_KEYSTROKE_SECONDS = 1.0


class Preempted(Exception):
    """All ranks have stopped, since one of them was asked to.

    Attributes:
        advice: What to do next, a phrase that follows the reason.
    """

    def __init__(
        self, reason: str, advice: str = "Rerun the same command to resume"
    ) -> None:
        super().__init__(reason)
        self.advice = advice


class StopSignals:
    """Records SIGTERM, SIGUSR1 and SIGINT, which the loop looks at between two steps.

    Repeated signals change nothing, except that a second Ctrl-C (SIGINT) ends the
    process at once.

    Attributes:
        seen: Name of the first signal, such as "SIGTERM"; empty before.
    """

    def __init__(self) -> None:
        """Installs the handlers. To be created in the main thread."""
        self.seen = ""
        self._seen_at = 0.0
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._record)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if not self.seen:
            self.seen = signal.Signals(number).name
            self._seen_at = time.monotonic()
        elif (
            number == signal.SIGINT
            and time.monotonic() - self._seen_at > _SAME_KEYSTROKE_SECONDS
        ):
            os._exit(128 + number)
