"""The watchdogs of two processes, without MPI and TensorFlow."""

import os
import re
import signal
import socket
import subprocess
import time
from multiprocessing import shared_memory

import pytest

from resnet.watchdog import client, history, proc
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


def test_a_watchdog_that_was_killed_ends_the_job_and_is_named(ranks, tmp_path):
    pair = ranks()
    os.kill(watchdog_of(1), signal.SIGKILL)
    assert pair[0].process.wait(SOON) == -signal.SIGKILL
    assert re.search(
        r"error: the watchdog of rank 1 on \S+ was killed, or its host has crashed",
        said(tmp_path),
    )


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


def test_a_process_that_is_stopped_is_seen_to_be(ranks):
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not proc.process_is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        assert proc.process_is_stopped(process.pid)
        process.kill()
    assert not proc.process_is_stopped(process.pid)


def test_shared_memory_that_this_process_has_mapped_is_known():
    memory = shared_memory.SharedMemory(create=True, size=100)
    try:
        seen = proc.shared_memory()
        assert f"/dev/shm/{memory.name}" in seen
    finally:
        memory.close()
        memory.unlink()


def test_a_host_knows_its_own_addresses():
    addresses = client.own_addresses()
    assert "127.0.0.1" in addresses
    for address in addresses:
        socket.inet_aton(address)
