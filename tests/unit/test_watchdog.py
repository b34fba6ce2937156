"""The watchdogs of two processes, without MPI and TensorFlow."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import time
import types
from multiprocessing import shared_memory

import pytest

from resnet.watchdog import client, history, monitor, proc
from resnet.watchdog.printing import RankWarnings
from tests.many_watchdogs import ManyWatchdogs
from tests.unit.watched_ranks import (
    SOON,
    TOKEN,
    Rank,
    assert_all_gone,
    await_watchdogs,
    said,
    watchdog_of,
    watchdogs,
)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_dies_takes_the_other_with_it_and_is_named(ranks, tmp_path, killed):
    pair = ranks()
    assert [len(os.listdir(one.temporary)) for one in pair] == [1, 1]
    pair[killed].process.kill()
    assert_all_gone(pair)
    assert not any(os.listdir(one.temporary) for one in pair)
    sentence = rf"error: rank {killed} on \S+ has died while computing step 7: it was"
    assert len(re.findall(sentence, said(tmp_path))) == 1
    assert said(tmp_path).count("error:") == 1
    failure = history.read_failure(tmp_path)
    assert failure["step"] == 7
    assert f"rank {killed} on" in failure["reason"]


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_is_named(ranks, tmp_path, stopped):
    pair = ranks(stall_seconds=1.0)
    pair[stopped].process.send_signal(signal.SIGSTOP)
    assert_all_gone(pair)
    assert re.search(
        rf"error: rank {stopped} on \S+ was stopped by a signal \d+ s ago",
        said(tmp_path),
    )


def test_what_a_failed_rank_says_is_said_once_and_it_ends_the_job(ranks, tmp_path):
    pair, failed = ranks(), 1
    pair[failed].do(r"failed('Traceback:\n  a line\nTypeError: a bug\n')")
    assert "Traceback:\n  a line\nTypeError: a bug\n(rank" in said(tmp_path)
    reason = history.read_failure(tmp_path)["reason"]
    assert reason.startswith(f"TypeError: a bug (rank {failed} on ")
    assert f"(rank {failed} on " in said(tmp_path)
    assert pair[1 - failed].process.poll() is None  # MPI ends it, or else its watchdog.
    assert pair[1 - failed].process.wait(SOON) == -signal.SIGKILL
    assert said(tmp_path).count("rank") == 1


def test_ranks_killed_as_they_end_regularly_leave_nothing(ranks, tmp_path):
    pair = ranks()
    for rank in pair:
        rank.do("deregister()")
        rank.process.kill()
    assert_all_gone(pair)
    assert not any(rank.memory.exists() for rank in pair)
    assert not any(os.listdir(rank.temporary) for rank in pair)
    assert said(tmp_path) == ""


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_end_regularly_leave_no_watchdog_and_print_nothing(
    ranks, tmp_path, first
):
    pair = ranks()
    for rank in (first, 1 - first):
        pair[rank].do("deregister()")
        time.sleep(0.3)
    for one in pair:
        one.process.stdin.close()
    assert_all_gone(pair, 0)
    assert said(tmp_path) == ""


@pytest.mark.parametrize("killed", [0, 1])
def test_a_watchdog_that_was_killed_ends_the_job_and_is_named(ranks, tmp_path, killed):
    pair = ranks()
    os.kill(watchdog_of(killed), signal.SIGKILL)
    assert pair[1 - killed].process.wait(SOON) == -signal.SIGKILL
    sentence = (
        r"error: rank 1 on \S+ has lost its connection to the watchdog of rank 0 on"
        r" node0: it was killed, or its host has crashed",
        r"error: the watchdog of rank 1 on \S+ was killed, or its host has crashed",
    )[killed]
    assert re.search(sentence, said(tmp_path))


def test_foreign_modules_connections_and_signals_are_ignored(ranks, tmp_path):
    (tmp_path / "json.py").write_text("raise ImportError\n")
    (tmp_path / "resnet").mkdir()
    (tmp_path / "resnet" / "__init__.py").write_text("raise ImportError\n")
    await_watchdogs()  # Those of the test before may still be ending.
    pair = ranks()
    for pid in watchdogs():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            os.kill(pid, number)
    for text in (b'{"died": "all is lost"}\n', b"GET / HTTP/1.1\r\n", b"[]\n"):
        with socket.create_connection(("127.0.0.1", int(pair[0].said))) as stranger:
            stranger.sendall(text)
            assert stranger.recv(1) == b""  # Disconnected.
    assert len(watchdogs()) == 2
    for rank in (0, 1):
        pair[rank].do("deregister()")
    assert said(tmp_path) == ""


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_hangs_during_shutdown_does_not_keep_the_job(
    ranks, tmp_path, stopped
):
    pair = ranks(stall_seconds=1.0)
    pair[1 - stopped].do("deregister()")  # The other one doesn't come to it.
    pair[stopped].process.send_signal(signal.SIGSTOP)
    assert pair[1 - stopped].process.wait(SOON) == -signal.SIGKILL
    assert re.search(
        rf"error: rank {1 - stopped} on \S+ was done \d+ s ago, but its process has"
        r" not ended: another rank hangs during shutdown",
        said(tmp_path),
    )


def test_a_rank_that_dies_before_its_watchdog_looks_leaves_no_shared_memory(tmp_path):
    rank = Rank(1, tmp_path / "1", 60.0, "1", tmp_path)
    try:
        rank.process.kill()
        deadline = time.monotonic() + SOON
        while rank.memory.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        rank.end()


@pytest.fixture
def port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def alone(tmp_path, port, request):
    """Rank 1, with this stall time, whose monitor isn't there."""
    rank = Rank(1, tmp_path / "1", request.param, str(port), tmp_path)
    yield rank
    rank.end()


def stall_seconds(seconds: float):
    return pytest.mark.parametrize("alone", [seconds], indirect=True)


@stall_seconds(1.0)
def test_a_watchdog_without_a_monitor_monitors_its_own_rank(alone, tmp_path):
    alone.process.send_signal(signal.SIGSTOP)
    assert alone.process.wait(SOON) == -signal.SIGKILL
    assert re.search(
        r"error: rank 1 on \S+ was stopped by a signal \d+ s ago",
        (tmp_path / "1").read_text(),
    )


@stall_seconds(5.0)
def test_a_watchdog_warns_and_retries_until_the_monitor_answers(alone, tmp_path, port):
    deadline = time.monotonic() + SOON
    while not (warning := (tmp_path / "1").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "warning: the watchdog of rank 1" in warning
    with socket.create_server(("127.0.0.1", port)) as monitor:
        monitor.settimeout(SOON)
        connection, _ = monitor.accept()
        with connection:
            assert f'"token": "{TOKEN}"'.encode() in connection.recv(1000)


@stall_seconds(60.0)
def test_a_monitor_that_is_gone_since_the_job_ends_is_no_warning(alone, tmp_path):
    alone.do("deregister()")
    alone.process.stdin.close()
    assert_all_gone([alone], 0)
    assert (tmp_path / "1").read_text() == ""


def test_one_death_of_512_ranks_ends_all_and_is_one_line():
    with ManyWatchdogs(512) as many:
        assert len(many.channels) == 511
        many.heartbeat("computing step 12345")
        assert many.sent_bytes / 511 < 200  # One short message a rank at a tick.
        many.lose(300)
        assert many.received(30) == [{"kill": True}] * 511
        assert many.end() == "error: rank 300 on node150 has died. The job ends.\n"


def test_a_process_that_is_stopped_is_seen_to_be():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not proc.process_is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + SOON
        while not proc.process_is_stopped(process.pid):
            assert time.monotonic() < deadline
        process.kill()
    assert not proc.process_is_stopped(process.pid)


def test_a_host_knows_its_own_addresses_and_a_process_its_shared_memory():
    addresses = client.own_addresses()
    assert "127.0.0.1" in addresses
    for address in addresses:
        socket.inet_aton(address)
    memory = shared_memory.SharedMemory(create=True, size=100)
    try:
        assert f"/dev/shm/{memory.name}" in proc.shared_memory()
    finally:
        memory.close()
        memory.unlink()


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
    pair = ranks(stall_seconds=2.0)
    for one in pair:
        one.do(call)
    time.sleep(0.3)  # Until the watchdogs have heard of it.
    processes = [*watchdogs(), *(one.process.pid for one in pair)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.6)
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


def test_a_text_is_printed_once_with_the_ranks_that_logged_it():
    warnings = RankWarnings()
    warnings.add("warning", "slow", "rank 1 on a")
    assert warnings.tick() == []  # The others' may be on their way.
    for _ in range(2):
        warnings.add("warning", "slow", "rank 2 on b")
    assert warnings.tick() == ["warning: rank 1 on a, rank 2 on b: slow"]
    warnings.add("warning", "slow", "rank 3 on c")
    assert [warnings.tick(), warnings.tick(), warnings.take_all()] == [[], [], []]


def test_what_rank_0_has_printed_is_not_printed_again():
    warnings = RankWarnings()
    warnings.add("warning", "early", "rank 1 on a")
    for text in ("early", "late"):
        warnings.add_printed(text)
    warnings.add("warning", "late", "rank 1 on a")
    assert warnings.take_all() == []


def test_many_ranks_and_many_warnings_are_counted():
    warnings = RankWarnings()
    for rank in range(1, 10):
        warnings.add("error", "full", f"rank {rank} on a")
        warnings.add("warning", f"no. {rank}", f"rank {rank} on a")
    lines = warnings.take_all()
    names = ", ".join(f"rank {rank} on a" for rank in range(1, 5))
    assert lines[0] == f"error: {names} and 5 more: full"
    assert lines[1] == "warning: rank 1 on a: no. 1"
    assert lines[-1] == "warning: 2 more warnings of other ranks"
    assert len(lines) == 9
