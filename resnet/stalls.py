"""Which rank keeps the others waiting: what the guards know of each, and a verdict."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LONGEST_STEPS = 3  # A rank stands still after this many times its longest step.
# What may take long, such as starting, has so many times as long, and at least:
_UNTIMED = 10
_LEAST_UNTIMED_SECONDS = 600.0


@dataclass
class Peer:
    """What is known of one rank.

    Attributes:
        rank: From 0.
        host: Its name.
        doing: What it does, as a sentence goes on after "while".
        is_timed: Whether that must end within the set time, rather than ten times that.
        waits_for_others: Whether that can only end when the others do the same.
        since: When it began, by this process's clock.
        heard_at: When its guard was last heard.
        longest: Seconds of the longest thing that it did.
        stopped_since: When it was seen stopped by a signal, if it is.
    """

    rank: int
    host: str = ""
    doing: str = "starting"
    is_timed: bool = False
    waits_for_others: bool = False
    since: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    longest: float = 0.0
    stopped_since: float | None = None

    @property
    def name(self) -> str:
        """The rank and its host."""
        return f"rank {self.rank} on {self.host}"

    def does(self, message: Mapping[str, Any]) -> None:
        """Takes over what it does now."""
        now = time.monotonic()
        if message["doing"] != self.doing:
            if self.is_timed:
                self.longest = max(self.longest, now - self.since)
            self.since = now
        self.doing = message["doing"]
        self.is_timed = message["is_timed"]
        self.waits_for_others = message["waits_for_others"]
        self.heard_at = now
        self.is_stopped(message.get("is_stopped", False))

    def is_stopped(self, is_stopped: bool) -> None:
        """Takes over whether it is stopped by a signal."""
        if not is_stopped:
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = time.monotonic()


def find_stall(
    peers: Sequence[Peer], unheard: Sequence[int], stall_seconds: float, now: float
) -> str | None:
    """Returns a sentence about the rank that keeps the others waiting, if one does.

    Args:
        peers: The ranks that are known.
        unheard: Those of the others that have not ended as they should.
        stall_seconds: How long one may be silent, stopped, or do the same thing; longer
            if its steps take longer.
        now: As `time.monotonic` has it.
    """
    for peer in peers:
        if now - peer.heard_at > stall_seconds:
            return (
                f"{peer.name} has not been heard of for {now - peer.heard_at:.0f} s;"
                f" last, it was {peer.doing}. Its host or the network is down"
            )
    longest = max(peer.longest for peer in peers)
    allowed = max(stall_seconds, _LONGEST_STEPS * longest)
    untimed = max(_UNTIMED * stall_seconds, _LEAST_UNTIMED_SECONDS)
    late = [
        peer
        for peer in peers
        if now - peer.since > (allowed if peer.is_timed else max(allowed, untimed))
    ]
    for peer in peers:
        if peer.stopped_since and (late or now - peer.stopped_since > stall_seconds):
            return (
                f"{peer.name} was stopped by a signal {now - peer.stopped_since:.0f} s"
                f" ago, while {peer.doing}"
            )
    if not late:
        return None
    # Those that wait for others are not to blame, if there is one that doesn't.
    first = min(late, key=lambda peer: (peer.waits_for_others, peer.since))
    if first.waits_for_others and len(late) < len(peers):
        return None  # The one that all wait for has still time.
    if first.waits_for_others and unheard:
        if now - first.since <= untimed:
            return None  # It may be what they all wait for, and have still time.
        return (
            f"all ranks that are heard of have waited for {now - first.since:.0f} s,"
            f" while {first.doing}; never heard of: rank"
            f" {', '.join(map(str, unheard[:5]))}"
        )
    return f"{first.name} has been {first.doing} for {now - first.since:.0f} s"
