"""The watchdog of a process that is alone: a thread of it, with the same time limits.

It ends the process if that makes no progress, as in a read that hangs, and records why
the run has failed. If the process is killed, nothing is recorded.
"""

import os
import platform
import shutil
import sys
import threading
import time
from pathlib import Path

from resnet.watchdog import history, scratch_dir
from resnet.watchdog.stalls import MAX_SUSPENDED_SECONDS, Peer, find_stall

_INTERVAL_SECONDS = 1.0


class LoneWatchdog:
    """Does for a process without others what `WatchdogClient` does for a rank."""

    def __init__(self, stall_seconds: float, model_dir: str | None) -> None:
        """Starts the thread; in `model_dir`, if any, it writes `failure.json`."""
        self._stall_seconds = stall_seconds
        self._model_dir = model_dir
        self._me = Peer(0, platform.node())
        self._is_done = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        me, ticked_at = self._me, time.monotonic()
        suspended_seconds = min(MAX_SUSPENDED_SECONDS, self._stall_seconds / 2)
        while not self._is_done.wait(_INTERVAL_SECONDS):
            now = time.monotonic()
            if now - ticked_at > _INTERVAL_SECONDS + suspended_seconds:
                me.since = now
            ticked_at = me.heard_at = now
            if stall := find_stall([me], [], self._stall_seconds, now):
                self._fail(f"error: {stall}. The process ends.", stall)
                shutil.rmtree(scratch_dir.path(), ignore_errors=True)
                os._exit(1)

    def report_status(
        self, status: str, is_timed: bool, waits_for_others: bool
    ) -> None:
        """Notes what the process does now, as `WatchdogClient.report_status`."""
        self._me.update(
            {
                "status": status,
                "is_timed": is_timed,
                "waits_for_others": waits_for_others,
            }
        )

    def failed(self, text: str) -> None:
        """Prints and records why the run has failed."""
        self.deregister()
        last = text.rstrip().rpartition("\n")[2]  # The exception, after a traceback.
        self._fail(text, f"{last} ({self._me.name} failed while {self._me.status})")

    def _fail(self, text: str, reason: str) -> None:
        print(text, file=sys.stderr, flush=True)
        if self._model_dir:
            history.write_failure(Path(self._model_dir), reason)

    def deregister(self) -> None:
        """Ends the thread."""
        self._is_done.set()
