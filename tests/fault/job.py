"""A training job under mpirun, into which tests inject faults from outside."""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import proc
from tests import shared_memory

REPOSITORY = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).with_name("mpirun")
SUPERVISE = (sys.executable, str(REPOSITORY / "launch/supervise.py"))
START_SECONDS = 120.0  # To wait for what a healthy job does soon.
STEP = re.compile(r"^step (\d+)/", re.M)
_DYING_SECONDS = 10.0  # For processes that have been killed.
_MARK = "RESNET_TEST_JOB"
_HYDRAS_FILE = re.compile(rb"/tmp/hydra_hwloc_xmlfile_\w{6}")


class Job:
    """One start of a program on some ranks.

    `process` is mpirun's, `ended_after` the seconds from `faulted_at` to its end.
    """

    def __init__(
        self,
        launcher: Sequence[str],
        num_ranks: int,
        arguments: Sequence[str],
        program: str = "resnet/resnet_main.py",
        in_terminal: bool = False,
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - Closed with it.
        self._is_on_hosts = "-hosts" in launcher
        self.num_ranks = num_ranks
        self.faulted_at = time.monotonic()
        self.ended_after = 0.0
        self._earlier_segments = shared_memory.all_names()
        self._segments: set[str] = set()
        self._temporary = Path(tempfile.mkdtemp(prefix="job-"))
        self._hydras_files: set[Path] = set()
        self._of_earlier_jobs = _unfinished_files(arguments)
        self._terminal = _Terminal(self._output.fileno()) if in_terminal else None
        screen = self._terminal.screen if self._terminal else None
        self.process = subprocess.Popen(
            [*launcher, sys.executable, str(REPOSITORY / program), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "TMPDIR": str(self._temporary),
                _MARK: self._mark,
            },
            stdin=screen,
            stdout=subprocess.DEVNULL if screen is None else screen,
            stderr=self._output if screen is None else screen,
            start_new_session=True,
            preexec_fn=_take_terminal if in_terminal else None,
        )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *error: object) -> None:
        segments = self._segments | self._find_segments()
        for pid in (self.process.pid, *self._processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        deadline = time.monotonic() + _DYING_SECONDS
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.01)
        shared_memory.remove_unused(segments)
        if self._terminal:
            self._terminal.close()
        self._output.close()
        shutil.rmtree(self._temporary, ignore_errors=True)
        for file in self._hydras_files:
            file.unlink(missing_ok=True)

    @property
    def output(self) -> str:
        """All that was printed so far."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    @property
    def step(self) -> int:
        """Steps that a line of the output tells of."""
        return max([0, *map(int, STEP.findall(self.output))])

    def wait_until(
        self,
        is_so: Callable[[], object],
        seconds: float = 0.005,
        most_seconds: float = START_SECONDS,
    ) -> None:
        """Waits until something is so, looking again after so many seconds."""
        deadline = time.monotonic() + most_seconds
        while not is_so():
            assert self.process.poll() is None, f"ended early: {self.output}"
            assert time.monotonic() < deadline, f"never came: {self.output}"
            time.sleep(seconds)
        self._hydras_files = self._hydras_files or self._find_hydras_files()
        self._segments |= self._find_segments()

    def wait_for_step(self, step: int) -> None:
        """Waits until so many steps are done."""
        self.wait_until(lambda: self.step >= step)

    @property
    def segments(self) -> set[str]:
        """The files in shared memory that its processes use."""
        return self._find_segments()

    def processes_of(self, words: bytes) -> list[int]:
        """Returns its processes that have some words in command or environment."""
        return self._processes(lambda facts: words in facts)

    def pid(self, rank: int) -> int:
        """Returns the process of a rank, once it is there; not its wrapper."""
        found: list[int] = []

        def is_there() -> list[int]:
            same = self._processes(lambda facts: _is_rank(facts, rank))
            found[:] = [one for one in same if proc.parent_of(one) in same]
            return found

        self.wait_until(is_there)
        (pid,) = found
        return pid

    def watchdog_pid(self, rank: int) -> int:
        """Returns the process of a rank's watchdog."""
        name = f"--rank={rank}\0".encode()
        (found,) = self._processes(
            lambda facts: b"resnet.watchdog.monitor" in facts and name in facts
        )
        return found

    def child_pid(self, job: str, index: int) -> int:
        """Returns a TensorFlow server of the job `ps` or `worker`, once it is there."""
        words = f"--job={job}\0--index={index}\0".encode()
        found: list[int] = []

        def is_there() -> list[int]:
            found[:] = self._processes(
                lambda facts: (
                    b"parameter_servers.task_server" in facts and words in facts
                )
            )
            return found

        self.wait_until(is_there)
        (pid,) = found
        return pid

    def signal_child(self, job: str, index: int, number: int) -> int:
        """Sends a signal to a TensorFlow server; returns its process.

        The clock to the job's end begins.
        """
        pid = self.child_pid(job, index)
        self.faulted_at = time.monotonic()
        os.kill(pid, number)
        return pid

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a rank; the clock to the job's end begins."""
        pid = self.pid(rank)
        self.faulted_at = time.monotonic()
        os.kill(pid, number)

    def signal_mpirun(self, number: int) -> None:
        """Sends a signal to mpirun; the clock to the job's end begins."""
        self.faulted_at = time.monotonic()
        self.process.send_signal(number)

    def close_terminal(self) -> None:
        """Closes mpirun's terminal; the clock to the job's end begins."""
        assert self._terminal
        self.faulted_at = time.monotonic()
        self._terminal.close()

    def end(self, seconds: float) -> int:
        """Returns mpirun's exit code; fails if it doesn't come within so long."""
        deadline = self.faulted_at + seconds
        while (code := self.process.poll()) is None:
            late = time.monotonic() > deadline
            assert not late, f"still there {seconds} s later: {self.output}"
            if not self._segments:
                self._segments = self._find_segments()
            time.sleep(0.01)
        self.ended_after = time.monotonic() - self.faulted_at
        return code

    def leftovers(
        self, within_seconds: float = 5.0, hydra_is_cut_off: bool = False
    ) -> list[str]:
        """Returns what the job has left running, in shared memory or on disk.

        What a killed job has not finished in its model_dir is there until the next one
        trains, which leaves it if it is still there then.

        Where Hydra's proxies are cut off, as by MPI_Abort or after a failure on several
        hosts, each leaves a file that ranks can't know of (BUILD_NOTES.md).
        """
        if self._is_on_hosts and self.process.poll() not in (0, REQUEUE_EXIT_CODE):
            hydra_is_cut_off = True
        deadline = time.monotonic() + within_seconds
        on_disk = set() if hydra_is_cut_off else self._hydras_files
        if "Training for" in self.output:
            on_disk = on_disk | self._of_earlier_jobs
        while True:
            left = [f"process {pid}" for pid in self._processes()]
            left += sorted(self._unused_segments())
            left += sorted(map(str, self._temporary.rglob("*")))
            left += sorted(str(path) for path in on_disk if path.exists())
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def _find_segments(self) -> set[str]:
        """Returns the files in shared memory that the job's processes use."""
        names = shared_memory.all_names() - self._earlier_segments
        used = (shared_memory.used_by(pid, names) for pid in self._processes())
        return set().union(*used)

    def _unused_segments(self) -> set[str]:
        """Returns the job's files in shared memory that no process uses.

        Those that it wasn't seen to use may be other jobs', which run beside it.
        """
        return shared_memory.unused(self._segments)

    def _find_hydras_files(self) -> set[Path]:
        """Returns the files whose names Hydra's processes have in their memory."""
        found = set()
        for pid in self._processes(lambda facts: b"/hydra_pmi_proxy\0" in facts):
            try:
                heap = _heap(pid)
            except OSError:
                continue
            found |= {Path(os.fsdecode(name)) for name in _HYDRAS_FILE.findall(heap)}
        return found

    def _processes(
        self, is_one: Callable[[bytes], bool] = lambda facts: True
    ) -> list[int]:
        found = []
        mark = f"{_MARK}={self._mark}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                facts = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark in facts and is_one(facts + b"\0" + command):
                found.append(int(entry.name))
        return found


class _Terminal:
    """A terminal whose output is copied to a file until it is closed.

    `screen` is its file descriptor for the programs that run in it.
    """

    def __init__(self, output: int) -> None:
        self._keyboard, self.screen = pty.openpty()
        self._output = output
        self._is_open = True
        self._thread = threading.Thread(target=self._copy)
        self._thread.start()

    def close(self) -> None:
        """Closes it, as the kernel does when its window is closed."""
        self._is_open = False
        self._thread.join()

    def _copy(self) -> None:
        while self._is_open:
            if select.select([self._keyboard], [], [], 0.05)[0]:
                os.write(self._output, os.read(self._keyboard, 1 << 16))
        os.close(self.screen)
        os.close(self._keyboard)


def _take_terminal() -> None:
    """Makes standard input the controlling terminal of this new session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _unfinished_files(arguments: Sequence[str]) -> set[Path]:
    """Returns what killed jobs have left in the model_dir that the arguments name."""
    names = [one.partition("=")[2] for one in arguments if "--model_dir=" in one]
    return set(Path(names[-1]).rglob(".*")) if names else set()


def _heap(pid: int) -> bytes:
    """Returns what a process of this user has in its heap."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[heap]"):
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            with open(f"/proc/{pid}/mem", "rb") as memory:
                memory.seek(begin)
                return memory.read(end - begin)
    return b""


def _is_rank(facts: bytes, rank: int) -> bool:
    """Returns whether a process is the rank itself, and not one that it has started."""
    return (
        f"PMI_RANK={rank}\0".encode() in facts
        and b"resnet.watchdog.monitor" not in facts
        and b"resnet.training.parameter_servers" not in facts
    )
