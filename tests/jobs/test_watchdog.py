"""Small processes with watchdogs, without MPI and TensorFlow."""

import contextlib
import fcntl
import hmac
import os
import re
import socket
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1

import pytest

from resnet.watchdog import client, connections, history, monitor
from resnet.watchdog.printing import RankWarnings
from tests.many_watchdogs import ManyWatchdogs

# What a watchdog runs instead of `monitor.main()`: tests wait for the end of a rank
# that doesn't end the job itself, and for the file that tells of rank 1's first report.
MONITOR = """
import pathlib
import resnet.watchdog.monitor as m
m._ENDING_SECONDS = 0.7
receive = m.Watchdog._receive_from_watchdog
def receive_and_tell(watchdog, channel, message):
    receive(watchdog, channel, message)
    if "status" in message:
        pathlib.Path("heard").touch()
m.Watchdog._receive_from_watchdog = receive_and_tell
m.main()
"""
RANK = f"""
import mmap, os, sys, tempfile
from resnet.watchdog import client, scratch_dir
from resnet.watchdog.client import WatchdogClient
from resnet.hardware.placement import ProcessInfo
rank, stall_seconds, port, model_dir, memory = int(sys.argv[1]), *sys.argv[2:6]
outlives = "outlives_launcher" in sys.argv
assert client._START.endswith("main()\\n")
client._START = client._START.removesuffix("main()\\n") + {MONITOR!r}
os.chdir(model_dir)
with open(memory, "wb+") as file:  # As MPI has.
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
place = ProcessInfo(rank, 2, rank, 2)
link = WatchdogClient(
    place, os.environ["TOKEN"], float(stall_seconds), model_dir, outlives
)
scratch_dir.make()
tempfile.mkstemp()
listens = "node0", ["127.0.0.1"], int(port)
print(link.port if rank == 0 else link.connect(*listens), flush=True)
for line in sys.stdin:
    eval(line)
    print("done", flush=True)
"""
SOON = 60.0
# Tells these watchdogs from those of tests in other processes.
TOKEN = f"secret-{os.getpid()}"
STEP_7 = "report_status('computing step 7', True, True)"
# A launcher of a rank, with the rank's standard input.
SHELL = ("sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh")
PIPE_BYTES = 4096


class Rank:
    """A process with a watchdog, which calls its client as told."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        stall_seconds: float,
        port: str,
        launcher: Sequence[str] = (),
        words: Sequence[str] = (),
    ) -> None:
        self.memory = Path("/dev/shm") / f"resnet-test-{uuid.uuid4().hex}"
        self.temporary = folder / f"temporary files of {rank}"
        self.temporary.mkdir()
        arguments = (rank, stall_seconds, port, folder, self.memory, *words)
        with (folder / str(rank)).open("ab") as file:
            self.process = subprocess.Popen(
                [*launcher, sys.executable, "-c", RANK, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "TMPDIR": str(self.temporary), "TOKEN": TOKEN},
            )
        self.said = self.process.stdout.readline().strip()

    def do(self, call: str) -> None:
        """Makes it call its client."""
        self.process.stdin.write(f"link.{call}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def await_end(self, code: int = -SIGKILL) -> None:
        assert self.process.wait(SOON) == code

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.memory.unlink(missing_ok=True)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts a rank; its arguments are those of `Rank`."""
    started = []

    def start_rank(*arguments, **options) -> Rank:
        started.append(Rank(tmp_path, *arguments, **options))
        return started[-1]

    yield start_rank
    for rank in started:
        rank.end()


@pytest.fixture
def ranks(start, tmp_path):
    """Returns a function that starts two ranks."""

    def start_both(stall_seconds: float = 60.0) -> list[Rank]:
        first = start(0, stall_seconds, "0")
        pair = [first, start(1, stall_seconds, first.said)]
        for rank in pair:
            rank.do(STEP_7)
        wait_until((tmp_path / "heard").exists)
        return pair

    return start_both


@pytest.fixture
def port() -> str:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def said(folder: Path) -> str:
    files = (folder / str(rank) for rank in (0, 1))
    return "".join(file.read_text() for file in files if file.exists())


def is_watchdog(pid: int) -> bool:
    """Returns whether a process is a watchdog of this test's ranks."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    own = f"{connections.TOKEN_VARIABLE}={TOKEN}\0".encode()
    return b"resnet.watchdog.monitor" in command and own in environment


def watchdogs() -> list[int]:
    names = [entry.name for entry in Path("/proc").iterdir()]
    return [int(name) for name in names if name.isdigit() and is_watchdog(int(name))]


def watchdog_of(rank: int) -> int:
    argument = f"--rank={rank}\0".encode()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in watchdogs()}
    (pid,) = (pid for pid, command in commands.items() if argument in command)
    return pid


def assert_all_gone(ranks: list[Rank], code: int = -SIGKILL) -> None:
    for rank in ranks:
        rank.await_end(code)
    wait_until(lambda: not watchdogs())


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_dies_takes_the_other_with_it_and_is_named(ranks, tmp_path, killed):
    pair = ranks()
    assert [len(os.listdir(rank.temporary)) for rank in pair] == [1, 1]
    pair[killed].process.kill()
    assert_all_gone(pair)
    assert not any(os.listdir(rank.temporary) for rank in pair)
    sentence = rf"error: rank {killed} on \S+ has died while computing step 7: it was"
    assert len(re.findall(sentence, said(tmp_path))) == 1
    assert said(tmp_path).count("error:") == 1
    failure = history.read_failure(tmp_path)
    assert failure["step"] == 7
    assert f"rank {killed} on" in failure["reason"]


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_is_named(ranks, tmp_path, stopped):
    pair = ranks(stall_seconds=1.0)
    pair[stopped].process.send_signal(SIGSTOP)
    assert_all_gone(pair)
    sentence = rf"error: rank {stopped} on \S+ was stopped by a signal \d+ s ago"
    assert re.search(sentence, said(tmp_path))


def test_what_a_failed_rank_says_is_said_once_and_it_ends_the_job(ranks, tmp_path):
    other, failed = ranks()
    failed.do(r"failed('Traceback:\n  a line\nTypeError: a bug\n')")
    assert "Traceback:\n  a line\nTypeError: a bug\n(rank 1 on " in said(tmp_path)
    reason = history.read_failure(tmp_path)["reason"]
    assert reason.startswith("TypeError: a bug (rank 1 on ")
    assert other.process.poll() is None  # MPI ends it, or else its watchdog.
    other.await_end()
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
    for rank in pair:
        rank.process.stdin.close()
    assert_all_gone(pair, 0)
    assert said(tmp_path) == ""


@pytest.mark.parametrize("killed", [0, 1])
def test_a_watchdog_that_was_killed_ends_the_job_and_is_named(ranks, tmp_path, killed):
    pair = ranks()
    os.kill(watchdog_of(killed), SIGKILL)
    pair[1 - killed].await_end()
    sentence = (
        r"rank 1 on \S+ has lost its connection to the watchdog of rank 0 on node0: it",
        r"the watchdog of rank 1 on \S+",
    )[killed]
    words = f"error: {sentence} was killed, or its host has crashed"
    assert re.search(words, said(tmp_path))


def test_foreign_modules_connections_and_signals_are_ignored(ranks, tmp_path):
    (tmp_path / "json.py").write_text("raise ImportError\n")
    (tmp_path / "resnet").mkdir()
    (tmp_path / "resnet" / "__init__.py").write_text("raise ImportError\n")
    wait_until(lambda: not watchdogs())  # Those of the test before may be ending.
    pair = ranks()
    for pid in watchdogs():
        for number in (SIGTERM, SIGINT, SIGUSR1, SIGHUP):
            os.kill(pid, number)
    texts = (b'{"died": "all is lost"}\n', b"{}\n{}\n", b"GET /\r\n", b"[" * 60_000)
    for text in (*texts, *100 * texts):
        with socket.create_connection(("127.0.0.1", int(pair[0].said))) as stranger:
            stranger.sendall(text)
            with contextlib.suppress(ConnectionResetError):
                assert len(stranger.recv(100)) == 16  # A challenge.
                assert stranger.recv(1) == b""  # Disconnected.
    for address in set(client.own_addresses()) - {"127.0.0.1"}:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, int(pair[0].said)))
    assert len(watchdogs()) == 2
    for rank in pair:
        rank.do("deregister()")
    assert said(tmp_path) == ""


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_hangs_during_shutdown_does_not_keep_the_job(
    ranks, tmp_path, stopped
):
    pair = ranks(stall_seconds=1.0)
    pair[1 - stopped].do("deregister()")  # The other one doesn't come to it.
    pair[stopped].process.send_signal(SIGSTOP)
    pair[1 - stopped].await_end()
    sentence = rf"error: rank {1 - stopped} on \S+ was done \d+ s ago, but its process"
    assert re.search(f"{sentence} .* hangs during shutdown", said(tmp_path))


def test_a_rank_that_dies_before_its_watchdog_looks_leaves_no_shared_memory(start):
    rank = start(1, 60.0, "1")
    rank.process.kill()
    wait_until(lambda: not rank.memory.exists())


def test_a_watchdog_without_a_monitor_monitors_its_own_rank(start, port, tmp_path):
    alone = start(1, 1.0, port)
    alone.process.send_signal(SIGSTOP)
    alone.await_end()
    sentence = r"error: rank 1 on \S+ was stopped by a signal \d+ s ago"
    assert re.search(sentence, said(tmp_path))


def test_a_watchdog_warns_and_retries_until_the_monitor_answers(start, port, tmp_path):
    start(1, 5.0, port)
    wait_until(lambda: "warning: the watchdog of rank 1" in said(tmp_path))
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        listener.settimeout(SOON)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(bytes(16))
            proof = hmac.new(TOKEN.encode(), b"watchdog" + bytes(16), "sha256")
            assert connection.recv(1000) == f"{proof.hexdigest()}1\n".encode()


def test_a_defect_of_the_monitor_ends_the_job_and_is_recorded(ranks, tmp_path):
    pair = ranks()
    pair[0].do("_channel.send({'port': 1})")  # A message without the host.
    assert_all_gone(pair)
    sentence = r"the watchdog of rank 0 on \S+ has failed: KeyError\('host'\)"
    assert re.search(f"error: {sentence}. The job ends", said(tmp_path))
    assert re.match(sentence, history.read_failure(tmp_path)["reason"])


def test_a_monitor_that_is_gone_since_the_job_ends_is_no_warning(start, port, tmp_path):
    alone = start(1, 60.0, port)
    alone.do("deregister()")
    alone.process.stdin.close()
    assert_all_gone([alone], 0)
    assert said(tmp_path) == ""


def test_one_death_of_512_ranks_ends_all_and_is_one_line():
    with ManyWatchdogs(512) as many:
        assert len(many.channels) == 511
        many.heartbeat("computing step 12345")
        assert many.sent_bytes / 511 < 200  # One short message a rank at a tick.
        many.lose(300)
        assert many.received(30) == [{"kill": True}] * 511
        assert many.end() == "error: rank 300 on node150 has died. The job ends.\n"


def test_a_host_knows_its_own_addresses():
    addresses = client.own_addresses()
    assert "127.0.0.1" in addresses
    for address in addresses:
        socket.inet_aton(address)


def test_a_stopped_watchdog_is_named_and_ends_with_its_rank(ranks, tmp_path):
    pair = ranks(stall_seconds=1.0)
    os.kill(watchdog_of(1), SIGSTOP)
    pair[0].await_end()
    pair[1].process.kill()  # As the launcher does then.
    assert_all_gone(pair)
    sentence = r"rank 1 on \S+ has sent no heartbeat for \d+ s; .* watchdog was stopped"
    assert re.search(f"error: {sentence}", said(tmp_path))


def test_stopped_watchdogs_end_with_ranks_that_are_done(ranks, tmp_path):
    pair = ranks()
    for rank in (0, 1):
        os.kill(watchdog_of(rank), SIGSTOP)
    for rank in pair:
        rank.do("deregister()")
        rank.process.stdin.close()
    assert_all_gone(pair, 0)
    assert said(tmp_path) == ""


def test_a_job_whose_output_nobody_reads_ends_all_the_same(ranks, tmp_path):
    os.mkfifo(tmp_path / "0")
    pipe = os.open(tmp_path / "0", os.O_RDWR)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(pipe, b"x" * PIPE_BYTES)
    pair = ranks()
    pair[1].process.kill()
    pair[0].await_end()
    wait_until(lambda: history.read_failure(tmp_path))
    assert "rank 1 on" in history.read_failure(tmp_path)["reason"]
    assert os.read(pipe, PIPE_BYTES) == b"x" * PIPE_BYTES
    assert b"error: rank 1 on" in os.read(pipe, PIPE_BYTES)  # Once there is room.
    os.close(pipe)
    assert_all_gone(pair)


@pytest.mark.parametrize("rank_fails", [False, True])
def test_a_launcher_that_dies_is_named_and_its_rank_ends(start, tmp_path, rank_fails):
    rank = start(0, 1.0, "0", launcher=SHELL)
    pid = rank.process.pid
    rank.do(STEP_7)
    if rank_fails:  # When it notices that its launcher has died.
        is_there = f"all(os.getppid() == {pid} for _ in iter(int, 1))"
        rank.process.stdin.write(f"{is_there} or link.failed('broken')\n")
        rank.process.stdin.flush()
    rank.process.kill()
    wait_until(lambda: not watchdogs())
    assert rank.process.stdout.read() == ""  # Also the rank has ended.
    sentence = rf"the launcher's process {pid} on \S+, which started rank 0,"
    assert re.search(f"error: {sentence} has died", said(tmp_path))
    assert re.search(sentence, history.read_failure(tmp_path)["reason"])


def test_a_rank_whose_launcher_and_rank_0_are_gone_ends(start, port, tmp_path):
    """It would save and end, but waits for rank 0, which died before it had started."""
    rank = start(1, 1.0, port, launcher=SHELL, words=["outlives_launcher"])
    rank.process.kill()
    wait_until(lambda: not watchdogs())
    assert rank.process.stdout.read() == ""  # Also the rank has ended.
    assert "has died. The ranks save and end." in said(tmp_path)
    assert "rank 0 has ended, as the launcher has. This rank ends." in said(tmp_path)


@pytest.mark.parametrize("call", [STEP_7, "deregister()"])
def test_a_job_that_was_suspended_longer_than_the_stall_time_continues(
    ranks, tmp_path, call
):
    pair = ranks(stall_seconds=2.0)
    for rank in pair:
        rank.do(call)
    time.sleep(0.3)  # Until the watchdogs have heard of it.
    processes = [*watchdogs(), *(rank.process.pid for rank in pair)]
    for number, seconds in ((SIGSTOP, 2.5), (SIGCONT, 0.6)):
        for pid in processes:
            os.kill(pid, number)
        time.sleep(seconds)
    assert said(tmp_path) == ""
    assert [rank.process.poll() for rank in pair] == [None, None]


def test_a_suspension_in_the_middle_of_a_tick_restarts_the_clocks(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(monitor, "time", clock)
    ticks, restarts = [], []

    class Suspended(monitor.Watchdog):
        def __init__(self):
            self._selector = types.SimpleNamespace(select=self._wait)
            self._interval, self._suspended_seconds = 1.0, 10.0
            self._ticked_at, self._listener = 0.0, None

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
    warnings.add("warning", "early", "rank 1 on a")
    for text in ("early", "late"):  # As rank 0 has printed them.
        warnings.add_printed(text)
    warnings.add("warning", "late", "rank 1 on a")
    assert [warnings.tick(), warnings.tick(), warnings.take_all()] == [[], [], []]


def test_many_ranks_and_many_warnings_are_counted():
    warnings = RankWarnings()
    for rank in range(1, 10):
        warnings.add("error", "full", f"rank {rank} on a")
        warnings.add("warning", f"no. {rank}", f"rank {rank} on a")
    lines = warnings.take_all()
    names = ", ".join(f"rank {rank} on a" for rank in range(1, 5))
    assert lines[:2] == [
        f"error: {names} and 5 more: full",
        "warning: rank 1 on a: no. 1",
    ]
    assert lines[8:] == ["warning: 2 more warnings of other ranks"]
