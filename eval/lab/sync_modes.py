r"""Compares the speed of synchronous and asynchronous training on this machine.

python eval/lab/sync_modes.py --data_dir=RECORDS --num_workers=2
python eval/lab/sync_modes.py --data_dir=RECORDS --num_workers=4 --speed=0.2

It trains alternately in both modes with as many workers, and prints the images
per second of each run, the staleness, the share of the cores' time that the
coordinator and the servers of the asynchronous one take, and the ratio of the
rates. With --speed below 1 one worker is slowed down: it is stopped (SIGSTOP)
for the rest of each half second.
"""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

import psutil

from eval.benchmarking import jobs
from eval.benchmarking.jobs import spread
from eval.lab import trainings
from resnet.base import cli, program
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting
from resnet.config.config import Config
from resnet.hardware import placement

_PERIOD_SECONDS = 0.5  # Shorter than a heartbeat, so that nobody calls it lost.
_POLL_SECONDS = 0.1
_WARMUP_LINES = 2  # Log lines to skip: the first one contains the startup.


@dataclass(frozen=True)
class ComparisonSettings:
    """What is trained, and how often."""

    recipe: str = setting("cifar10_inception_bsp", "The recipe of both.")
    num_workers: int = setting(2, "The number of workers.", bounds=COUNT)
    num_ps: int = setting(1, "The number of parameter servers.", bounds=COUNT)
    speed: float = setting(
        1.0,
        "The fraction of the time in which the last worker runs.",
        bounds=(0.01, 1.0),
    )
    steps: int = setting(60, "The steps of each run.", bounds=COUNT)
    steps_per_line: int = setting(5, "The steps of a line.", bounds=COUNT)
    pairs: int = setting(3, "The number of alternating runs.", bounds=COUNT)
    train_flags: str = setting(
        "", "Further flags of the training program, as in a shell."
    )


FLAGS: cli.Groups = (
    cli.Flags(Config, names=("data_dir",)),
    cli.Flags(ComparisonSettings, common=True),
)


class Measured(NamedTuple):
    """The figures of one run.

    They are the median rate over the lines of its log, the mean staleness of the
    updates (0 in synchronous training), and the share of the cores' time that processes
    other than workers take.
    """

    images_per_second: float
    staleness: float
    share: float


def main(argv: Sequence[str]) -> int:
    """Measures as the flags say, and prints the figures."""
    line = cli.parse(argv, __doc__, FLAGS)
    settings, data_dir = line.of(ComparisonSettings), line.values["data_dir"]
    if not data_dir:
        raise UserError("--data_dir is required.")
    if settings.steps <= (_WARMUP_LINES + 1) * settings.steps_per_line:
        raise UserError(
            f"--steps must be more than {_WARMUP_LINES + 1} times --steps_per_line;"
            f" got {settings.steps} and {settings.steps_per_line}."
        )
    print(f"{'mode':>5} {'images/s':>9} {'staleness':>9} {'coordinator, servers':>21}")
    ratios, shares = [], []
    for _ in range(settings.pairs):
        rates = {}
        for mode in ("bsp", "async"):
            rates[mode], staleness, share = measure(mode, data_dir, settings)
            others = f"{'-':>9} {'-':>21}"
            if mode == "async":
                others = f"{staleness:9.2f} {share:21.1%}"
            print(f"{mode:>5} {rates[mode]:9,.1f} {others}", flush=True)
        ratios.append(rates["async"] / rates["bsp"])
        shares.append(share)
    print(f"async / bsp: {spread(ratios)}")
    print(f"share of coordinator and servers: {spread(shares)}")
    return 0


def measure(mode: str, data_dir: str, settings: ComparisonSettings) -> Measured:
    """Trains in one mode; returns its figures."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            f"--sync_mode={mode}",
            "--mode=train",
            f"--recipe={settings.recipe}",
            f"--data_dir={data_dir}",
            f"--model_dir={folder}/run",
            f"--stop_after_steps={settings.steps}",
            f"--log_step_count_steps={settings.steps_per_line}",
            "--checkpoint_every=1000000steps",
            *trainings.split_flags(settings.train_flags, "train_flags"),
        ]
        num_ranks = settings.num_workers
        if mode == "async":
            flags.append(f"--num_ps={settings.num_ps}")
            num_ranks += 1 + settings.num_ps
        command = jobs.command(trainings.PROGRAM, flags, num_ranks)
        log = pathlib.Path(folder, "log")
        with running(command, log) as job:
            lines = _Lines(pathlib.Path(folder, "run", "metrics.jsonl"), job, log)
            lines.wait_for(1)
            with contextlib.ExitStack() as while_timed:
                if settings.speed < 1:
                    worker = last_worker(job, mode, settings.num_workers)
                    while_timed.enter_context(slowed(worker, settings.speed))
                lines.wait_for(_WARMUP_LINES)
                began_at, before = time.monotonic(), _seconds_of_others(job)
                lines.wait_for(settings.steps // settings.steps_per_line)
                wall = time.monotonic() - began_at
                others = _seconds_of_others(job) - before
        timed = lines.read()[_WARMUP_LINES:]
    return Measured(
        statistics.median(line["images_per_second"] for line in timed),
        statistics.mean(line.get("staleness_mean", 0) for line in timed),
        others / wall / len(os.sched_getaffinity(0)),
    )


@contextlib.contextmanager
def running(command: list[str], log: pathlib.Path) -> Iterator[subprocess.Popen]:
    """Runs a job that ends with the block."""
    with log.open("wb") as output:
        job = trainings.start(command, output)
    try:
        yield job
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait()


@dataclass(frozen=True)
class _Lines:
    """The metrics that a job has written, for which one can wait."""

    path: pathlib.Path
    job: subprocess.Popen
    log: pathlib.Path

    def read(self) -> list[dict]:
        if not self.path.exists():
            return []
        whole = self.path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole]

    def wait_for(self, number: int) -> None:
        """Waits until there are so many lines; UserError if the job ends before."""
        while len(self.read()) < number:
            has_ended = self.job.poll() is not None
            if has_ended and len(self.read()) < number:
                printed = self.log.read_text(errors="replace").strip().split("\n")
                raise UserError(
                    f"a training failed with exit code {self.job.returncode}:"
                    f" {printed[-1]}"
                )
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def slowed(worker: psutil.Process, speed: float) -> Iterator[None]:
    """Lets a process run only for a fraction of the time, within the block."""
    is_done = threading.Event()

    def stop_and_continue() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not is_done.wait(_PERIOD_SECONDS * speed):
                worker.suspend()
                is_done.wait(_PERIOD_SECONDS * (1 - speed))
                worker.resume()

    thread = threading.Thread(target=stop_and_continue)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def last_worker(job: subprocess.Popen, mode: str, num_workers: int) -> psutil.Process:
    """Returns the process in which the last worker computes, or raises UserError."""
    index = num_workers - 1

    def is_it(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            if mode == "async":
                return {"--job=worker", f"--index={index}"} <= set(words)
            rank = placement.find_process_info(process.environ()).rank
            return str(trainings.PROGRAM) in words and rank == index
        return False

    processes = psutil.Process(job.pid).children(recursive=True)
    workers = list(filter(is_it, processes))
    if not workers:
        raise UserError(
            f"the process of worker {index} was not found among those that mpirun"
            " started. --speed below 1 needs all workers on this host, under the"
            " mpirun of MPICH, Intel MPI or Open MPI."
        )
    # Of the processes of a rank it is the one that the others look after.
    return workers[0 if mode == "async" else -1]


def _seconds_of_others(job: subprocess.Popen) -> float:
    """Returns the CPU time in seconds of all processes of a job but its workers."""
    seconds = 0.0
    for process in psutil.Process(job.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--job=worker" not in process.cmdline():
                times = process.cpu_times()
                seconds += times.user + times.system
    return seconds


if __name__ == "__main__":
    sys.exit(program.run(main))
