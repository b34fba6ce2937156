import re
import time

import pytest

from resnet.watchdog.stalls import Peer, find_stall

NOW = 10_000.0


def peer(rank: int, status: str, seconds: float, **facts) -> Peer:
    """A rank whose status is this many seconds old, and whose heartbeat is new."""
    facts = {"is_timed": True, "heard_at": NOW, **facts}
    return Peer(rank, f"node{rank}", status, since=NOW - seconds, **facts)


def waiting(rank: int, seconds: float, **facts) -> Peer:
    return peer(rank, "computing step 7", seconds, waits_for_others=True, **facts)


def reading(seconds: float) -> Peer:
    return peer(1, "reading the batch of step 7", seconds)


def starting(rank: int, seconds: float) -> Peer:
    return peer(rank, "starting", seconds, is_timed=False)


def stopped(rank: int, seconds: float) -> Peer:
    return waiting(rank, seconds, stopped_since=NOW - seconds)


STOPPED = r"on node\d was stopped by a signal"


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([waiting(0, 119), peer(1, "reading", 119)], None),
        (
            [waiting(0, 130), waiting(1, 130, heard_at=NOW - 121)],
            "rank 1 on node1 has sent no heartbeat for 121 s; its last status was:"
            " computing step 7. Its watchdog was stopped, or",
        ),
        # Those that wait for the stopped one are not to blame.
        (
            [waiting(0, 122), waiting(1, 122), stopped(2, 121)],
            f"rank 2 {STOPPED} 121 s",
        ),
        ([waiting(0, 121), stopped(1, 60)], f"rank 1 {STOPPED} 60 s"),
        ([stopped(0, 60), waiting(1, 60)], None),  # A moment is allowed.
        ([waiting(0, 300), reading(121)], "rank 1 on node1 has been reading"),
        # The one that all wait for has still time.
        ([waiting(0, 300), reading(100)], None),
        ([waiting(0, 300), starting(1, 500)], None),
        # All wait for each other: the first.
        ([waiting(0, 121), waiting(1, 125)], "rank 1 on node1 has been computing step"),
        # What may take long has ten times as long.
        ([waiting(0, 1190), starting(1, 1190)], None),
        ([waiting(0, 1190), starting(1, 1201)], "rank 1 on node1 has been starting"),
        # Three times the longest step.
        ([waiting(0, 130, longest=10.0), waiting(1, 129)], "rank 0 on node0 has been"),
        ([waiting(0, 130, longest=50.0), waiting(1, 130)], None),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(ranks, sentence):
    stall = find_stall(ranks, [], 120, NOW)
    assert stall is None if sentence is None else re.match(sentence, stall)


def test_an_untimed_activity_has_ten_minutes_however_short_the_stall_time():
    assert find_stall([starting(0, 590)], [], 5, NOW) is None
    assert find_stall([starting(0, 601)], [], 5, NOW) is not None


def test_a_moment_is_allowed_also_where_ranks_wait_as_long_as_the_job_takes():
    serving = peer(
        1, "looking after its ps", 5000, is_timed=False, waits_for_others=True
    )
    coordinator = peer(0, "coordinating", 3, is_timed=False, stopped_since=NOW - 5)
    assert find_stall([coordinator, serving], [], 120, NOW) is None
    coordinator.set_stopped(False)
    serving.stopped_since = NOW - 121
    assert "rank 1 on node1 was stopped by a signal 121 s ago" in str(
        find_stall([coordinator, serving], [], 120, NOW)
    )


@pytest.mark.parametrize(("seconds", "is_stalled"), [(1100, False), (1201, True)])
def test_a_rank_that_never_reported_may_be_the_one_that_all_wait_for(
    seconds, is_stalled
):
    ranks = [waiting(0, seconds), waiting(2, seconds)]
    stall = find_stall(ranks, [1, 3], 120, NOW)
    assert (stall is not None) == is_stalled
    if stall:
        assert stall.endswith("; rank 1, 3 has never reported")


def test_a_rank_does_one_thing_after_the_other(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    rank = Peer(0, "node0")
    computing = {"status": "computing", "is_timed": True, "waits_for_others": True}
    rank.update(computing)
    clock[0] = 30.0
    rank.update(computing)  # The same status again.
    assert (rank.since, rank.heard_at, rank.longest) == (0.0, 30.0, 0.0)
    rank.update({"status": "saving", "is_timed": False, "waits_for_others": False})
    assert (rank.since, rank.longest) == (30.0, 30.0)
    clock[0] = 500.0
    rank.update({**computing, "is_stopped": True})  # Saving took long, but isn't timed.
    assert (rank.longest, rank.stopped_since) == (30.0, 500.0)
    rank.update(computing)
    assert rank.stopped_since is None
