import time

import pytest

from resnet.watchdog import stalls
from resnet.watchdog.stalls import Peer

NOW = 10_000.0


def find_stall(ranks: list[Peer], stall_seconds: float, now: float) -> str | None:
    return stalls.find_stall(ranks, [], stall_seconds, now)


def peer(rank: int, status: str, seconds: float, **facts) -> Peer:
    """A rank whose status is this many seconds old, and whose heartbeat is new."""
    facts = {"is_timed": True, "heard_at": NOW, **facts}
    return Peer(rank, f"node{rank}", status, since=NOW - seconds, **facts)


def waiting(rank: int, seconds: float, **facts) -> Peer:
    return peer(rank, "computing step 7", seconds, waits_for_others=True, **facts)


def test_no_rank_has_stalled_within_the_stall_time():
    assert find_stall([waiting(0, 119), peer(1, "reading", 119)], 120, NOW) is None


def test_a_rank_without_heartbeat_is_named():
    gone = waiting(1, 130, heard_at=NOW - 121)
    assert find_stall([waiting(0, 130), gone], 120, NOW) == (
        "rank 1 on node1 has sent no heartbeat for 121 s; its last status was:"
        " computing step 7. Its watchdog was stopped, or its host or the network is"
        " down"
    )


def test_a_stopped_rank_is_named_and_not_those_that_wait_for_it():
    stopped = waiting(2, 121, stopped_since=NOW - 121)
    ranks = [waiting(0, 122), waiting(1, 122), stopped]
    assert find_stall(ranks, 120, NOW) == (
        "rank 2 on node2 was stopped by a signal 121 s ago, while computing step 7"
    )


def test_a_rank_that_is_stopped_is_to_blame_for_those_that_are_late():
    ranks = [waiting(0, 121), waiting(1, 60, stopped_since=NOW - 60)]
    assert find_stall(ranks, 120, NOW) == (
        "rank 1 on node1 was stopped by a signal 60 s ago, while computing step 7"
    )


def test_a_rank_that_was_stopped_for_a_moment_is_left_alone():
    assert find_stall([waiting(0, 121, stopped_since=NOW - 5)], 1000, NOW) is None


def test_a_moment_is_allowed_also_where_ranks_wait_as_long_as_the_job_takes():
    serving = peer(
        1, "looking after its ps", 5000, is_timed=False, waits_for_others=True
    )
    coordinator = peer(0, "coordinating", 3, is_timed=False, stopped_since=NOW - 5)
    assert find_stall([coordinator, serving], 120, NOW) is None
    coordinator.set_stopped(False)
    serving.stopped_since = NOW - 121
    assert "rank 1 on node1 was stopped by a signal 121 s ago" in str(
        find_stall([coordinator, serving], 120, NOW)
    )


def test_the_one_that_reads_is_named_and_not_those_that_wait():
    ranks = [waiting(0, 300), peer(1, "reading the batch of step 7", 121)]
    assert find_stall(ranks, 120, NOW) == (
        "rank 1 on node1 has been reading the batch of step 7 for 121 s"
    )


def test_those_that_wait_for_one_that_has_still_time_are_left_alone():
    ranks = [waiting(0, 300), peer(1, "reading the batch of step 7", 100)]
    assert find_stall(ranks, 120, NOW) is None
    ranks = [waiting(0, 300), peer(1, "starting", 500, is_timed=False)]
    assert find_stall(ranks, 120, NOW) is None


def test_if_all_wait_for_one_another_the_first_is_named():
    sentence = find_stall([waiting(0, 121), waiting(1, 125)], 120, NOW)
    assert sentence == "rank 1 on node1 has been computing step 7 for 125 s"


def test_a_rank_that_never_reported_may_be_the_one_that_all_wait_for():
    ranks = [waiting(0, 1100), waiting(2, 1100)]
    assert stalls.find_stall(ranks, [1, 3], 120, NOW) is None
    ranks = [waiting(0, 1201), waiting(2, 1201)]
    assert stalls.find_stall(ranks, [1, 3], 120, NOW) == (
        "all ranks that have reported have waited for 1201 s while computing step 7;"
        " rank 1, 3 has never reported"
    )


def test_what_may_take_long_has_ten_times_as_long():
    ranks = [waiting(0, 1190), peer(1, "starting", 1190, is_timed=False)]
    assert find_stall(ranks, 120, NOW) is None
    ranks[1].since -= 11
    assert find_stall(ranks, 120, NOW) == (
        "rank 1 on node1 has been starting for 1201 s"
    )
    soon = [peer(0, "starting", 590, is_timed=False)]
    assert find_stall(soon, 5, NOW) is None


@pytest.mark.parametrize(("longest", "is_late"), [(10.0, True), (50.0, False)])
def test_long_steps_have_longer(longest, is_late):
    ranks = [waiting(0, 130, longest=longest), waiting(1, 130)]
    assert (find_stall(ranks, 120, NOW) is not None) == is_late


def test_a_rank_does_one_thing_after_the_other(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    one = Peer(0, "node0")
    computing = {"status": "computing", "is_timed": True, "waits_for_others": True}
    one.update(computing)
    clock[0] = 30.0
    one.update(computing)  # The same status again.
    assert (one.since, one.heard_at, one.longest) == (0.0, 30.0, 0.0)
    one.update({"status": "saving", "is_timed": False, "waits_for_others": False})
    assert (one.since, one.longest) == (30.0, 30.0)
    clock[0] = 500.0
    one.update({**computing, "is_stopped": True})  # Saving took long, but isn't timed.
    assert (one.longest, one.stopped_since) == (30.0, 500.0)
    one.update(computing)
    assert one.stopped_since is None
