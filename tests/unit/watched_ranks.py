"""Two small processes with watchdogs, without MPI and TensorFlow."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from resnet.watchdog import connections

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


class Rank:
    """A process with a watchdog, which calls its client as told."""

    def __init__(
        self,
        rank: int,
        stderr: Path,
        stall_seconds: float,
        port: str,
        model_dir: Path,
        launcher: Sequence[str] = (),
        *words: str,
    ) -> None:
        self.memory = Path("/dev/shm") / f"resnet-test-{uuid.uuid4().hex}"
        self.temporary = stderr.with_name(f"temporary files of {rank}")
        self.temporary.mkdir()
        with stderr.open("ab") as file:
            self.process = subprocess.Popen(
                [
                    *(
                        *launcher,
                        sys.executable,
                        "-c",
                        RANK,
                        str(rank),
                        str(stall_seconds),
                    ),
                    *(port, str(model_dir), str(self.memory), *words),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "TMPDIR": str(self.temporary), "TOKEN": TOKEN},
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
        deadline = time.monotonic() + SOON
        while not (tmp_path / "heard").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return started

    yield start
    for one in started:
        one.end()


def said(tmp_path: Path) -> str:
    return "".join((tmp_path / str(rank)).read_text() for rank in (0, 1))


def is_watchdog(pid: int) -> bool:
    """Returns whether a process is a watchdog of this test's ranks."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"resnet.watchdog.monitor" not in command:
            return False
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{connections.TOKEN_VARIABLE}={TOKEN}\0".encode() in environment


def watchdogs() -> list[int]:
    names = [entry.name for entry in Path("/proc").iterdir()]
    return [int(name) for name in names if name.isdigit() and is_watchdog(int(name))]


def assert_all_gone(ranks: list[Rank], code: int = -signal.SIGKILL) -> None:
    assert [one.process.wait(SOON) for one in ranks] == [code] * len(ranks)
    await_watchdogs()


def await_watchdogs() -> None:
    """Waits until no watchdog is left."""
    deadline = time.monotonic() + SOON
    while left := watchdogs():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def watchdog_of(rank: int) -> int:
    (pid,) = (
        pid
        for pid in watchdogs()
        if f"--rank={rank}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return pid
