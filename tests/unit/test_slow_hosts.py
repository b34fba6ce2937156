"""Slow hosts, by speeds that the tests make up, and by what a simulated kernel says."""

import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.distributed.communicator import Communicator
from resnet.hardware import slowdown
from resnet.hardware.placement import ProcessInfo
from resnet.hardware.slowdown import Rates
from resnet.metrics import slow_hosts
from resnet.metrics.slow_hosts import (
    SLOW,
    WINDOW_SECONDS,
    Episodes,
    Pace,
    Rank,
    SlowHosts,
)
from resnet.watchdog import history

ALONE = Communicator(ProcessInfo())
TWO_HOSTS = [Rank("a", "cpu"), Rank("a", "cpu"), Rank("b", "cpu"), Rank("b", "cpu")]
DIFFERENT = [Rank("a", "old"), Rank("b", "new"), Rank("c", "newest")]


def parts_after(pace: Pace, *speeds: float) -> np.ndarray:
    """Returns the parts after a window of some speeds, at most 1."""
    parts = pace.add(1000, [1000 / speed for speed in speeds])
    assert parts is not None
    return np.minimum(parts, 1)


def test_a_rank_is_compared_with_those_of_its_kind_from_the_start():
    parts = parts_after(Pace(TWO_HOSTS), 40, 40, 40, 20)
    np.testing.assert_allclose(parts, [1, 1, 1, 0.5])


def test_other_cpus_are_compared_with_their_own_past():
    pace = Pace(DIFFERENT)
    for _ in range(3):
        np.testing.assert_allclose(parts_after(pace, 10, 20, 40), 1)
    np.testing.assert_allclose(parts_after(pace, 10, 20, 24), [1, 1, 0.6])
    # The window of the slow rank is no part of its past.
    np.testing.assert_allclose(parts_after(pace, 10, 20, 24), [1, 1, 0.6])


def test_what_slows_the_ranks_of_all_hosts_is_no_fault_of_one():
    pace = Pace(DIFFERENT)
    for _ in range(3):
        parts_after(pace, 10, 20, 40)
    np.testing.assert_allclose(parts_after(pace, 5, 10, 20), 1)


def test_a_single_host_is_compared_with_its_past_until_images_cost_otherwise():
    pace = Pace([Rank("a", "cpu")])
    for _ in range(3):
        assert parts_after(pace, 10) == 1
    assert parts_after(pace, 6) == pytest.approx(0.6)
    pace.forget()
    assert parts_after(pace, 6) == 1


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=40), st.floats(1, 1000))
def test_windows_are_as_long_however_often_lines_are_logged(durations, speed):
    """Also where a report has no step whose time counts."""
    pace = Pace([Rank("a", "cpu")])
    in_window = 0.0
    for seconds in durations:
        images = round(seconds * speed) + 1
        in_window += seconds
        parts = pace.add(images, [seconds])
        assert (parts is not None) == (in_window >= WINDOW_SECONDS)
        if parts is not None:
            in_window = 0.0
        assert pace.add(0, [0.0]) is None or in_window >= WINDOW_SECONDS


@given(st.lists(st.booleans(), max_size=30))
def test_an_episode_begins_and_ends_with_two_windows_in_a_row(is_slow):
    episodes = Episodes(1)
    expected, run = False, 0
    for slow in is_slow:
        run = run + 1 if slow != expected else 0
        changed = episodes.update(np.array([0.5 if slow else 1.0]))
        assert changed[0] == (run == 2)
        if run == 2:
            expected, run = slow, 0
        assert episodes.is_slow[0] == expected


def test_a_rank_between_slow_and_usual_stays_what_it_is():
    episodes = Episodes(2)
    for _ in range(2):
        episodes.update(np.array([0.5, 1.0]))
    for _ in range(5):
        assert not episodes.update(np.array([SLOW + 0.05, SLOW + 0.05])).any()
    assert episodes.is_slow.tolist() == [True, False]


class Ranks(Communicator):
    """Rank 0 of four on two hosts; what all gather is this rank's, with other hosts."""

    def __init__(self) -> None:
        super().__init__(ProcessInfo(0, 4, 0, 4))

    def allgather(self, value):
        if isinstance(value, Rank):
            return [value._replace(host=host) for host in ("a", "a", "b", "b")]
        return ["", "", "its reason", "another one"]


def test_an_episode_is_told_once_with_its_host_and_reason(logged, tmp_path):
    slow = SlowHosts(Ranks(), tmp_path)
    phase = object()

    def window(step: int, *speeds: float) -> None:
        slow.update(step, phase, 100, [100 / speed for speed in speeds])

    window(10, 9, 9, 9, 9)  # The first steps of a phase don't count.
    for step in range(20, 60, 10):
        window(step, 10, 10, 4, 6)
    sentence = (
        "rank 2, rank 3 on b compute at 40 % of the usual speed, and all ranks wait"
        " for them: its reason"
    )
    assert logged == [sentence]
    assert history.slow_hosts(tmp_path) == {"b": 0.4}
    for step in (60, 70):
        window(step, 10, 10, 10, 5)  # One of its ranks is still slow.
    assert len(logged) == 1
    for step in (80, 90):
        window(step, 10, 10, 10, 10)
    assert logged[1:] == ["rank 3 on b computes at the usual speed again"]
    assert history.slow_hosts(tmp_path) == {}
    (begun, ended), _ = history.read(tmp_path)
    assert (begun["event"], begun["step"], begun["host"]) == (history.SLOW, 30, "b")
    assert (ended["event"], ended["step"], ended["host"]) == (
        history.RECOVERED,
        90,
        "b",
    )


def test_one_process_asks_its_own_kernel(logged, tmp_path, monkeypatch):
    rates = iter([Rates(), Rates(), Rates(), Rates(stolen=0.4), Rates(stolen=0.35)])
    kernel = types.SimpleNamespace(rates=lambda: next(rates))
    monkeypatch.setattr(slowdown, "Kernel", lambda: kernel)
    monkeypatch.setattr(slowdown, "other_process", lambda job: "")
    slow = SlowHosts(ALONE, tmp_path)
    phase = object()
    slow.update(1, phase, 0, [0.0])
    for step, seconds in enumerate((10, 10, 10, 20, 20), 2):
        slow.update(step, phase, 100, [seconds])
    assert len(logged) == 1
    assert logged[0].startswith("this process on ")
    assert logged[0].endswith(
        " computes at 50 % of the usual speed: the hypervisor takes 35 % of its"
        " processors' time"
    )
    # The same images in another phase of training are no reason to say anything.
    slow.update(9, object(), 100, [50.0])
    assert len(logged) == 1


def test_the_history_names_those_that_were_slow_at_the_end_of_the_last_start(tmp_path):
    for event, facts in (
        ("start", {}),
        (history.SLOW, {"host": "a", "part": 0.5}),
        ("start", {}),
        (history.SLOW, {"host": "b", "part": 0.6}),
        (history.SLOW, {"host": "c", "part": 0.7}),
        (history.RECOVERED, {"host": "c"}),
        (history.SLOW, {"host": "d", "part": "damaged"}),
    ):
        history.append(tmp_path, event, **facts)
    assert history.slow_hosts(tmp_path) == {"b": 0.6, "d": 1.0}
    assert slow_hosts.USUAL > SLOW
