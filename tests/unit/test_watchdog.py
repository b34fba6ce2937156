"""The watchdogs of two processes, without MPI and TensorFlow."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from resnet.watchdog import client, failure_file, messages, proc

RANK = """
import mmap, os, sys, tempfile
from resnet.watchdog import scratch_dir
from resnet.watchdog.client import WatchdogClient
from resnet.hardware.placement import ProcessInfo
rank, stall_seconds, port, model_dir, memory = int(sys.argv[1]), *sys.argv[2:]
os.chdir(model_dir)
with open(memory, "wb+") as file:  # As MPI has.
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
place = ProcessInfo(rank, 2, rank, 2)
link = WatchdogClient(place, "secret", float(stall_seconds), model_dir)
scratch_dir.make()
tempfile.mkstemp()
listens = "node0", ["127.0.0.1"], int(port)
print(link.port if rank == 0 else link.connect(*listens), flush=True)
for line in sys.stdin:
    eval(line)
    print("done", flush=True)
"""
SOON = 60.0


class Rank:
    """A process with a watchdog, which calls its client as told."""

    def __init__(
        self, rank: int, stderr: Path, stall_seconds: float, port: str, model_dir: Path
    ) -> None:
        self.memory = Path("/dev/shm") / f"resnet-test-{uuid.uuid4().hex}"
        self.temporary = stderr.with_name(f"temporary files of {rank}")
        self.temporary.mkdir()
        with stderr.open("ab") as file:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", RANK, str(rank), str(stall_seconds)),
                    *(port, str(model_dir), str(self.memory)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "TMPDIR": str(self.temporary)},
            )
        self.stderr = stderr
        self.said = self.process.stdout.readline().strip()

    def do(self, call: str) -> None:
        """Makes it call its client."""
        self.process.stdin.write(f"link.{call}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.memory.unlink(missing_ok=True)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def ranks(tmp_path):
    """Returns a function that starts two ranks."""
    started = []

    def start(stall_seconds: float = 60.0) -> list[Rank]:
        port = "0"
        for rank in (0, 1):
            started.append(
                Rank(rank, tmp_path / str(rank), stall_seconds, port, tmp_path)
            )
            port = port if rank else started[0].said
        for one in started:
            one.do("report_status('computing step 7', True, True)")
        time.sleep(0.5)  # Until the watchdogs are connected.
        return started

    yield start
    for one in started:
        one.end()


def said(tmp_path: Path) -> str:
    return "".join((tmp_path / str(rank)).read_text() for rank in (0, 1))


def watchdogs() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            is_own = f"{messages.TOKEN_VARIABLE}=secret\0".encode() in environment
            if is_own and b"resnet.watchdog.monitor" in command:
                found.append(int(entry.name))
    return found


def assert_all_gone(ranks: list[Rank], code: int = -signal.SIGKILL) -> None:
    assert [one.process.wait(SOON) for one in ranks] == [code] * len(ranks)
    deadline = time.monotonic() + SOON
    while watchdogs() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert watchdogs() == []


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
    failure = failure_file.read(tmp_path)
    assert failure["step"] == 7
    assert f"rank {killed} on" in failure["reason"]


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_is_named(ranks, tmp_path, stopped):
    pair = ranks(stall_seconds=1.0)
    pair[stopped].process.send_signal(signal.SIGSTOP)
    assert_all_gone(pair)
    assert re.search(
        rf"error: rank {stopped} on \S+ was stopped by a signal \d s ago",
        said(tmp_path),
    )


def test_what_a_failed_rank_says_is_said_once_and_it_ends_the_job(ranks, tmp_path):
    pair, failed = ranks(), 1
    pair[failed].do(r"failed('Traceback:\n  a bug\n')")
    assert "Traceback:\n  a bug\n(rank" in said(tmp_path)
    assert f"(rank {failed} on " in said(tmp_path)
    assert pair[1 - failed].process.poll() is None  # MPI ends it, or else its watchdog.
    assert pair[1 - failed].process.wait(SOON) == -signal.SIGKILL
    assert said(tmp_path).count("rank") == 1


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


def test_a_rank_killed_in_the_middle_of_a_proper_end_leaves_nothing(ranks, tmp_path):
    pair = ranks()
    for one in pair:
        one.do("deregister()")
        one.process.kill()
    assert_all_gone(pair)
    assert not any(one.memory.exists() for one in pair)
    assert not any(os.listdir(one.temporary) for one in pair)
    assert said(tmp_path) == ""


def test_a_watchdog_that_died_counts_as_a_lost_host(ranks, tmp_path):
    pair = ranks()
    os.kill(watchdog_of(1), signal.SIGKILL)
    assert pair[0].process.wait(SOON) == -signal.SIGKILL
    assert re.search(
        r"error: rank 1 on \S+ has died, and its watchdog with it", said(tmp_path)
    )


def watchdog_of(rank: int) -> int:
    (pid,) = (
        pid
        for pid in watchdogs()
        if f"--rank={rank}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return pid


def test_foreign_connections_and_signals_are_ignored(ranks, tmp_path):
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
        rf"error: rank {1 - stopped} on \S+ was done \d s ago, but its process has"
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


def test_a_watchdog_without_a_monitor_monitors_its_own_rank(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    alone = Rank(1, tmp_path / "1", 1.0, str(port), tmp_path)
    alone.process.send_signal(signal.SIGSTOP)
    assert alone.process.wait(SOON) == -signal.SIGKILL
    assert re.search(
        r"error: rank 1 on \S+ was stopped by a signal \d s ago",
        (tmp_path / "1").read_text(),
    )
    alone.end()


def test_a_watchdog_retries_until_the_monitor_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    late = Rank(1, tmp_path / "1", 5.0, str(port), tmp_path)
    time.sleep(0.5)
    with socket.create_server(("127.0.0.1", port)) as monitor:
        monitor.settimeout(SOON)
        connection, _ = monitor.accept()
        with connection:
            assert b'"token": "secret"' in connection.recv(1000)
    late.end()


def test_a_watchdog_imports_nothing_from_the_working_folder(ranks, tmp_path):
    (tmp_path / "json.py").write_text("raise ImportError\n")
    (tmp_path / "resnet").mkdir()
    (tmp_path / "resnet" / "__init__.py").write_text("raise ImportError\n")
    ranks()
    assert len(watchdogs()) == 2


def test_a_monitor_that_cannot_be_reached_is_a_warning(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    alone = Rank(1, tmp_path / "1", 60.0, str(port), tmp_path)
    alone.do("deregister()")
    alone.process.stdin.close()
    assert_all_gone([alone], 0)
    assert "warning: the watchdog of rank 1" in (tmp_path / "1").read_text()
    alone.end()


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
    for one in addresses:
        socket.inet_aton(one)
