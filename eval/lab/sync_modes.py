r"""Compares the speed of synchronous and asynchronous training on this machine.

python eval/lab/sync_modes.py --data_dir=RECORDS --num_workers=2
python eval/lab/sync_modes.py --data_dir=RECORDS --num_workers=4 \
    --speed=0.2

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
from collections.abc import Iterator
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

import psutil
from absl import flags

from eval import measuring
from resnet import shared_flags
from resnet.base import errors
from resnet.base.errors import UserError
from resnet.hardware import placement

FLAGS = flags.FLAGS
_PERIOD_SECONDS = 0.5  # Shorter than a heartbeat, so that nobody calls it lost.
_POLL_SECONDS = 0.1
_WARMUP_LINES = 2  # Log lines to skip: the first one contains the startup.


@dataclass(frozen=True)
class Measured:
    """The figures of one run.

    Attributes:
        images_per_second: The median over the lines of its log.
        staleness: The mean staleness of the updates; None in synchronous training.
        share: The share of the cores' time that processes other than workers take.
    """

    images_per_second: float
    staleness: float | None
    share: float


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program, when it starts."""
    flags.DEFINE_string(
        "recipe",
        "cifar10_inception_bsp",
        "The recipe of both.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "num_workers", 2, "The number of workers.", 1, flag_values=flag_values
    )
    flags.DEFINE_integer(
        "num_ps", 1, "The number of parameter servers.", 1, flag_values=flag_values
    )
    flags.DEFINE_float(
        "speed",
        1.0,
        "The fraction of the time in which the last worker runs.",
        0.01,
        1.0,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "steps", 60, "The steps of each run.", 1, flag_values=flag_values
    )
    flags.DEFINE_integer(
        "steps_per_line", 5, "The steps of a line.", 1, flag_values=flag_values
    )
    flags.DEFINE_integer(
        "pairs", 3, "The number of alternating runs.", 1, flag_values=flag_values
    )
    flags.DEFINE_string(
        "train_flags",
        "",
        "Further flags of the training program, as in a shell.",
        flag_values=flag_values,
    )


def main() -> None:
    """Measures as the flags say, and prints the figures."""
    if not FLAGS.data_dir:
        raise UserError("--data_dir is required.")
    if FLAGS.steps <= (_WARMUP_LINES + 1) * FLAGS.steps_per_line:
        raise UserError(
            f"--steps must be more than {_WARMUP_LINES + 1} times --steps_per_line;"
            f" got {FLAGS.steps} and {FLAGS.steps_per_line}."
        )
    print(f"{'mode':>5} {'images/s':>9} {'staleness':>9} {'coordinator, servers':>21}")
    ratios, shares = [], []
    for _ in range(FLAGS.pairs):
        rates = {}
        for mode in ("bsp", "async"):
            found = measure(mode)
            rates[mode] = found.images_per_second
            is_async = found.staleness is not None
            staleness = f"{found.staleness:.2f}" if is_async else "-"
            share = f"{found.share:.1%}" if is_async else "-"
            if is_async:
                shares.append(found.share)
            print(
                f"{mode:>5} {found.images_per_second:9,.1f} {staleness:>9} {share:>21}",
                flush=True,
            )
        ratios.append(rates["async"] / rates["bsp"])
    print(f"async / bsp: {spread(ratios)}")
    print(f"share of coordinator and servers: {spread(shares)}")


def spread(values: list[float]) -> str:
    """Returns the median, the range and the number of values as text."""
    median = statistics.median(values)
    return f"{median:.3f} ({min(values):.3f} to {max(values):.3f}, n={len(values)})"


def measure(mode: str) -> Measured:
    """Trains in one mode; returns its figures.

    Raises:
        UserError: If the training fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        num_ranks = FLAGS.num_workers
        if mode == "async":
            num_ranks += 1 + FLAGS.num_ps
        flags = [
            f"--sync_mode={mode}",
            "--mode=train",
            f"--recipe={FLAGS.recipe}",
            f"--data_dir={FLAGS.data_dir}",
            f"--model_dir={folder}/run",
            f"--stop_after_steps={FLAGS.steps}",
            f"--log_step_count_steps={FLAGS.steps_per_line}",
            "--checkpoint_every=1000000steps",
            *measuring.split_flags(FLAGS.train_flags, "train_flags"),
        ]
        if mode == "async":
            flags.append(f"--num_ps={FLAGS.num_ps}")
        command = measuring.command(measuring.TRAINING, flags, num_ranks)
        log = pathlib.Path(folder, "log")
        with running(command, log) as job:
            lines = _Lines(pathlib.Path(folder, "run", "metrics.jsonl"), job, log)
            lines.wait_for(1)
            with contextlib.ExitStack() as while_timed:
                if FLAGS.speed < 1:
                    while_timed.enter_context(slowed(_last_worker(job, mode)))
                lines.wait_for(_WARMUP_LINES)
                began_at, before = time.monotonic(), _seconds_of_others(job)
                lines.wait_for(FLAGS.steps // FLAGS.steps_per_line)
                wall = time.monotonic() - began_at
                others = _seconds_of_others(job) - before
        timed = lines.read()[_WARMUP_LINES:]
    staleness = None
    if mode == "async":
        staleness = statistics.mean(line["staleness_mean"] for line in timed)
    return Measured(
        statistics.median(line["images_per_second"] for line in timed),
        staleness,
        others / wall / len(os.sched_getaffinity(0)),
    )


@contextlib.contextmanager
def running(command: list[str], log: pathlib.Path) -> Iterator[subprocess.Popen]:
    """Runs a job that ends with the block."""
    with log.open("wb") as output:
        job = measuring.start_job(command, output)
    try:
        yield job
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait()


class _Lines:
    """The lines that a job has logged, for which one can wait."""

    def __init__(
        self, path: pathlib.Path, job: subprocess.Popen, log: pathlib.Path
    ) -> None:
        self._path = path
        self._job = job
        self._log = log

    def read(self) -> list[dict]:
        """Returns the lines so far."""
        if not self._path.exists():
            return []
        whole = self._path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole]

    def wait_for(self, number: int) -> None:
        """Waits until there are so many lines.

        Raises:
            UserError: If the job ends before.
        """
        while len(self.read()) < number:
            has_ended = self._job.poll() is not None
            if has_ended and len(self.read()) < number:
                printed = self._log.read_text(errors="replace").strip().split("\n")
                raise UserError(
                    f"a training failed with exit code {self._job.returncode}:"
                    f" {printed[-1]}"
                )
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def slowed(worker: psutil.Process) -> Iterator[None]:
    """Lets a process run only for --speed of the time, within the block."""
    is_done = threading.Event()

    def stop_and_continue() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not is_done.wait(_PERIOD_SECONDS * FLAGS.speed):
                worker.suspend()
                is_done.wait(_PERIOD_SECONDS * (1 - FLAGS.speed))
                worker.resume()

    thread = threading.Thread(target=stop_and_continue)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def _last_worker(job: subprocess.Popen, mode: str) -> psutil.Process:
    """Returns the process in which the last worker computes.

    Raises:
        UserError: If no process of this host is it.
    """
    index = FLAGS.num_workers - 1
    words = {"--job=worker", f"--index={index}"}

    def is_it(one: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            if mode == "async":
                return words <= set(one.cmdline())
            return _is_training(one) and _rank(one) == index
        return False

    found = list(filter(is_it, psutil.Process(job.pid).children(recursive=True)))
    if not found:
        raise UserError(
            f"the process of worker {index} was not found among those that mpirun"
            " started. --speed below 1 needs all workers on this host, under the"
            " mpirun of MPICH, Intel MPI or Open MPI."
        )
    # Of the processes of a rank it is the one that the others look after.
    return found[0 if mode == "async" else -1]


def _rank(one: psutil.Process) -> int:
    return placement.find_process_info(one.environ()).rank


def _is_training(one: psutil.Process) -> bool:
    return str(measuring.TRAINING) in one.cmdline()


def _seconds_of_others(job: subprocess.Popen) -> float:
    """Returns the CPU time in seconds of all processes of a job but its workers."""
    seconds = 0.0
    for one in psutil.Process(job.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--job=worker" not in one.cmdline():
                times = one.cpu_times()
                seconds += times.user + times.system
    return seconds


def run() -> None:
    """Runs the program."""
    shared_flags.keep_only(("data_dir",))
    define_flags(FLAGS)
    errors.run(main)


if __name__ == "__main__":
    run()
