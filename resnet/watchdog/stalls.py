"""Finds the rank that has stalled, from the status of each rank."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LONGEST_STEPS = 3  # An activity may take this many times the longest one so far.
# An activity without a time limit of its own, such as starting, may take this many
# times the stall time, or this many seconds if that is more.
_UNTIMED_FACTOR = 10
_MIN_UNTIMED_SECONDS = 600.0
# A tick that is later than this, or than half of the stall time if that is less, means
# that the whole job was suspended.
MAX_SUSPENDED_SECONDS = 10.0


@dataclass
class Peer:
    """The last known status of one rank.

    Attributes:
        status: Its activity, as a phrase that can follow "while", such as "reading".
        is_timed: Whether the activity must end within the stall time, rather than in
            the longer time for untimed activities.
        waits_for_others: Whether the activity only ends when all ranks do the same.
        since, heard_at, stopped_since: When the activity began, its watchdog sent its
            last message, and a signal stopped it, if one did, by the monotonic clock.
        longest: Duration of its longest timed activity, in seconds.
    """

    rank: int
    host: str = ""
    status: str = "starting"
    is_timed: bool = False
    waits_for_others: bool = False
    since: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    longest: float = 0.0
    stopped_since: float | None = None

    @property
    def name(self) -> str:
        """The rank and its host, such as "rank 1 on node7"."""
        return f"rank {self.rank} on {self.host}"

    def update(self, message: Mapping[str, Any]) -> None:
        """Updates the status from a message of the rank or its watchdog."""
        now = time.monotonic()
        if message["status"] != self.status:
            if self.is_timed:
                self.longest = max(self.longest, now - self.since)
            self.since = now
        self.status = message["status"]
        self.is_timed = message["is_timed"]
        self.waits_for_others = message["waits_for_others"]
        self.heard_at = now
        self.set_stopped(message.get("is_stopped", False))

    def report(self) -> dict[str, Any]:
        """Returns the message from which another watchdog updates the status."""
        return {
            "host": self.host,
            "status": self.status,
            "is_timed": self.is_timed,
            "waits_for_others": self.waits_for_others,
            "is_stopped": self.stopped_since is not None,
        }

    def set_stopped(self, is_stopped: bool) -> None:
        """Records whether the rank is stopped by a signal."""
        if not is_stopped:
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = time.monotonic()


def find_stall(
    peers: Sequence[Peer], unregistered: Sequence[int], stall_seconds: float, now: float
) -> str | None:
    """Returns a sentence that names the rank that has stalled, or None.

    A rank may be silent, stopped, or in the same activity for `stall_seconds`; in an
    activity for longer if earlier ones took longer.
    """
    for peer in peers:
        if now - peer.heard_at > stall_seconds:
            return (
                f"{peer.name} has sent no heartbeat for {now - peer.heard_at:.0f} s;"
                f" its last status was: {peer.status}. Its watchdog was stopped, or its"
                " host or the network is down"
            )
    longest = max(peer.longest for peer in peers)
    allowed = max(stall_seconds, _LONGEST_STEPS * longest)
    untimed = max(_UNTIMED_FACTOR * stall_seconds, _MIN_UNTIMED_SECONDS)
    late = [
        peer
        for peer in peers
        if now - peer.since > (allowed if peer.is_timed else max(allowed, untimed))
    ]
    # Ranks of parameter servers and of workers wait for as long as a job takes.
    is_held_up = any(peer.is_timed or not peer.waits_for_others for peer in late)
    for peer in peers:
        if peer.stopped_since is None:
            continue
        if is_held_up or now - peer.stopped_since > stall_seconds:
            seconds = max(now - peer.stopped_since, 0.0)
            return (
                f"{peer.name} was stopped by a signal {seconds:.0f} s ago, while"
                f" {peer.status}"
            )
    if not late:
        return None
    # Ranks that wait for others are waiting for one that doesn't, if there is one.
    first = min(late, key=lambda peer: (peer.waits_for_others, peer.since))
    if first.waits_for_others and len(late) < len(peers):
        return None  # The rank that they wait for still has time.
    if first.waits_for_others and unregistered:
        if now - first.since <= untimed:
            return None  # They may wait for an unregistered rank that still has time.
        return (
            f"all ranks that have reported have waited for {now - first.since:.0f} s"
            f" while {first.status}; rank {', '.join(map(str, unregistered[:5]))} has"
            " never reported"
        )
    return f"{first.name} has been {first.status} for {now - first.since:.0f} s"
