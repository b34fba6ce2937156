"""Faults of the watchdogs, of the launcher, and of who reads their output."""

import fcntl
import os
import re
import signal
import socket
import time
import types

import pytest

from resnet.watchdog import history, monitor
from tests.unit.watched_ranks import (
    SOON,
    Rank,
    assert_all_gone,
    await_watchdogs,
    said,
    watchdog_of,
    watchdogs,
)

_PIPE_BYTES = 4096


def test_a_stopped_watchdog_is_named_and_ends_with_its_rank(ranks, tmp_path):
    pair = ranks(stall_seconds=1.0)
    os.kill(watchdog_of(1), signal.SIGSTOP)
    assert pair[0].process.wait(SOON) == -signal.SIGKILL
    pair[1].process.kill()  # As the launcher does then.
    assert_all_gone(pair)
    assert re.search(
        r"error: rank 1 on \S+ has sent no heartbeat for \d+ s; .* Its watchdog was"
        r" stopped, or its host or the network is down",
        said(tmp_path),
    )


def test_stopped_watchdogs_end_with_ranks_that_are_done(ranks, tmp_path):
    pair = ranks()
    for rank in (0, 1):
        os.kill(watchdog_of(rank), signal.SIGSTOP)
    for one in pair:
        one.do("deregister()")
        one.process.stdin.close()
    assert_all_gone(pair, 0)
    assert said(tmp_path) == ""


def test_the_killed_watchdog_of_the_first_rank_is_named(ranks, tmp_path):
    pair = ranks()
    os.kill(watchdog_of(0), signal.SIGKILL)
    assert pair[1].process.wait(SOON) == -signal.SIGKILL
    assert re.search(
        r"error: rank 1 on \S+ has lost its connection to the watchdog of rank 0 on"
        r" node0: it was killed, or its host has crashed",
        said(tmp_path),
    )


def test_a_job_whose_output_nobody_reads_ends_all_the_same(ranks, tmp_path):
    path = tmp_path / "0"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.write(pipe, b"x" * _PIPE_BYTES)
    pair = ranks()
    pair[1].process.kill()
    assert pair[0].process.wait(SOON) == -signal.SIGKILL
    deadline = time.monotonic() + SOON
    while (failure := history.read_failure(tmp_path)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "rank 1 on" in failure["reason"]
    assert os.read(pipe, _PIPE_BYTES) == b"x" * _PIPE_BYTES
    assert b"error: rank 1 on" in os.read(pipe, _PIPE_BYTES)  # Once there is room.
    os.close(pipe)
    assert_all_gone(pair)


# A launcher of a rank, with the rank's standard input.
SHELL = ("sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh")
# What the rank does when it notices that its launcher has died: nothing, or fail.
AT_THE_END = "all(os.getppid() == {} for _ in iter(int, 1)) or link.failed('broken')"


@pytest.mark.parametrize("rank_fails", [False, True])
def test_a_launcher_that_dies_is_named_and_its_rank_ends(tmp_path, rank_fails):
    rank = Rank(0, tmp_path / "0", 1.0, "0", tmp_path, SHELL)
    try:
        rank.do("report_status('computing step 7', True, True)")
        if rank_fails:
            rank.process.stdin.write(f"{AT_THE_END.format(rank.process.pid)}\n")
            rank.process.stdin.flush()
        rank.process.kill()
        await_watchdogs()
        assert rank.process.stdout.read() == ""  # Also the rank has ended.
        sentence = (
            rf"the launcher's process {rank.process.pid} on \S+, which started rank 0,"
        )
        assert re.search(f"error: {sentence} has died", (tmp_path / "0").read_text())
        assert re.search(sentence, history.read_failure(tmp_path)["reason"])
    finally:
        rank.end()


def test_a_rank_whose_launcher_and_rank_0_are_gone_ends(tmp_path):
    """It would save and end, but waits for rank 0, which died before it had started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = (SHELL, "outlives_launcher")
    rank = Rank(1, tmp_path / "1", 1.0, port, tmp_path, *words)
    try:
        rank.process.kill()
        await_watchdogs()
        assert rank.process.stdout.read() == ""  # Also the rank has ended.
        printed = (tmp_path / "1").read_text()
        assert "has died. The ranks save and end." in printed
        assert "rank 0 has ended, as the launcher has. This rank ends." in printed
    finally:
        rank.end()


@pytest.mark.parametrize(
    "call", ["report_status('computing step 8', True, True)", "deregister()"]
)
def test_a_job_that_was_suspended_longer_than_the_stall_time_continues(
    ranks, tmp_path, call
):
    pair = ranks(stall_seconds=4.0)
    for one in pair:
        one.do(call)
    time.sleep(0.5)  # Until the watchdogs have heard of it.
    processes = [*watchdogs(), *(one.process.pid for one in pair)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(5.0)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert said(tmp_path) == ""
    assert [one.process.poll() for one in pair] == [None, None]


def test_a_suspension_in_the_middle_of_a_tick_restarts_the_clocks(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(monitor, "time", clock)
    ticks, restarts = [], []

    class Suspended(monitor.Watchdog):
        def __init__(self):
            self._selector = types.SimpleNamespace(select=self._wait)
            self._interval, self._suspended_seconds = 1.0, 10.0
            self._ticked_at = 0.0

        def _wait(self, seconds):
            clock.now += seconds
            return []

        def _tick(self, now):
            ticks.append(now)
            clock.now += 60 if len(ticks) == 2 else 0
            if len(ticks) == 4:
                raise InterruptedError

        def _restart_clocks(self, now):
            restarts.append(now)

    with pytest.raises(InterruptedError):
        Suspended().run()
    assert ticks == [1, 2, 63, 64]
    assert restarts == [63]
