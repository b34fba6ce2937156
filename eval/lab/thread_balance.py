r"""Measures how a step's work divides among more threads than there are cores.

python eval/lab/thread_balance.py --batch_size=48 --threads=1,2,8,22,32
python eval/lab/thread_balance.py --model=resnet9 --precision=bf16

The compiled ops divide their work into tasks, and record the processor time of
each. From these times follow the time that so many cores would take, if each
thread took the next task whenever it has finished one, and the share of the
work that one thread does while the others wait. All that isn't in the compiled
ops (TensorFlow's own ops, its executor and Python) counts as such, although
parts of it are parallel too. Waiting for memory that cores share is left out.
"""

import concurrent.futures
import contextlib
import ctypes
import heapq
import itertools
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from eval.benchmarking.settings import Settings
from resnet.base import cli, program
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting
from resnet.config import networks
from resnet.runtime import startup

NUM_CLASSES = 1000
MOST_THREADS = 256
RECORDED_STEPS = 3  # A task's time is the median.


@dataclass(frozen=True)
class BalanceSettings(Settings):
    """The step, and the threads that its work is divided for."""

    precision: str = setting(
        "float32", "Precision of the step.", names=tuple(networks.COMPUTE_DTYPES)
    )
    batch_size: int = setting(
        48,
        "Number of images of the step; the published run has 48 on each rank.",
        bounds=COUNT,
    )
    threads: tuple[int, ...] = setting(
        (1, 2, 8, 22, 32),
        "Numbers of threads to divide the work for, separated by commas.",
    )


_FLAGS = ("model", "precision", "batch_size", "image_size", "threads")
FLAGS: cli.Groups = (cli.Flags(BalanceSettings, names=_FLAGS, common=True),)


@dataclass(frozen=True)
class OpCall:
    """What one call of an op did, in seconds of processor time.

    Outside of regions it runs on one thread. A region divides work into tasks, and the
    next one starts when all are done.
    """

    op: str
    serial: float
    regions: tuple[tuple[float, ...], ...]

    @property
    def work(self) -> float:
        """The time of all threads together."""
        return self.serial + sum(map(sum, self.regions))

    def span(self, num_threads: int) -> float:
        """Returns the time from start to end on so many cores."""
        spans = (makespan(region, num_threads) for region in self.regions)
        return self.serial + sum(spans)


@dataclass(frozen=True)
class StepWork:
    """The work of a step, divided for a number of threads.

    The compiled ops run one after the other. The processor time of the whole step, by
    all threads, has a meaning with one thread only, since others spin while they wait.
    """

    num_threads: int
    ops: tuple[OpCall, ...]
    process_seconds: float

    @property
    def op_seconds(self) -> float:
        """The processor time of the compiled ops, by all threads."""
        return sum(call.work for call in self.ops)


def main(argv: Sequence[str]) -> int:
    """Records a step for each number of threads and prints how its work divides."""
    settings = cli.parse(argv, __doc__, FLAGS).of(BalanceSettings)
    counts = settings.threads
    if not counts or not all(1 <= count <= MOST_THREADS for count in counts):
        raise UserError(
            f"--threads must be numbers from 1 to {MOST_THREADS}, separated by commas;"
            f" got {','.join(map(str, counts))!r}."
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # Without notes on the CPU.
    spawn = multiprocessing.get_context("spawn")
    steps = {}
    for count in sorted({1, *counts}):
        # Each needs a process, as TensorFlow's pool starts only once.
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as process:
            steps[count] = process.submit(record_step, settings, count).result()
    print(table(steps[1], [steps[count] for count in counts]))
    return 0


def record_step(settings: BalanceSettings, num_threads: int) -> StepWork:
    """Returns the work of a training step, divided for any number of threads."""
    startup.import_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    from eval.benchmarking import throughput
    from resnet import native
    from resnet.distributed.communicator import Communicator
    from resnet.hardware.placement import ProcessInfo

    if native.ops() is None:
        raise UserError("the tasks are those of the compiled ops, which are missing")
    network = throughput.build_network(settings, NUM_CLASSES)
    alone, batch_size = Communicator(ProcessInfo()), settings.batch_size
    step = throughput.training_step(network, settings.phase, alone)
    images = throughput.images_from_memory(batch_size, settings.side, NUM_CLASSES, 0)
    step(*next(images))
    calls_of_steps, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(RECORDED_STEPS):
            start = time.process_time()
            with recorded(pathlib.Path(folder, "tasks")) as calls:
                step(*next(images))
                seconds.append(time.process_time() - start)
            calls_of_steps.append(calls)
    medians = median_calls(calls_of_steps)
    return StepWork(num_threads, medians, statistics.median(seconds))


@contextlib.contextmanager
def recorded(file: pathlib.Path) -> Iterator[list[OpCall]]:
    """Records the compiled ops that run in the block, into the list that it yields.

    The library writes to a new file; OSError if it can't.
    """
    from resnet import native  # Imports TensorFlow.

    library = ctypes.CDLL(str(native.OPS_LIBRARY))
    library.resnet_stop_recording_tasks.restype = ctypes.c_bool
    calls: list[OpCall] = []
    library.resnet_start_recording_tasks()
    try:
        yield calls
    finally:
        written = library.resnet_stop_recording_tasks(str(file).encode())
    if not written:
        raise OSError(f"the tasks can't be written to {file}")
    calls += parse(file.read_text())


def parse(text: str) -> list[OpCall]:
    """Returns the calls that resnet/native/task_times.h describes."""
    rows = [line.split() for line in text.splitlines()]
    calls = []
    for _, of_call in itertools.groupby(rows, key=lambda row: int(row[0])):
        (_, op, _, _, serial), *tasks = of_call
        by_region = itertools.groupby(tasks, key=lambda row: int(row[2]))
        regions = (tuple(float(row[4]) for row in region) for _, region in by_region)
        calls.append(OpCall(op, float(serial), tuple(regions)))
    return calls


def median_calls(steps: Sequence[Sequence[OpCall]]) -> tuple[OpCall, ...]:
    """Returns the calls of a step, each time the median over steps that did the same.

    Ops that don't depend on each other may run in any order, so those of one kind are
    matched by their number. Raises ValueError if the steps did not divide their work
    alike.
    """

    def division(call: OpCall) -> tuple[str, tuple[int, ...]]:
        return call.op, tuple(map(len, call.regions))

    ordered = [sorted(step, key=division) for step in steps]
    if len({tuple(map(division, step)) for step in ordered}) > 1:
        raise ValueError("the recorded steps divided their work differently")
    return tuple(
        OpCall(
            calls[0].op,
            statistics.median(call.serial for call in calls),
            tuple(
                tuple(map(statistics.median, zip(*regions, strict=True)))
                for regions in zip(*(call.regions for call in calls), strict=True)
            ),
        )
        for calls in zip(*ordered, strict=True)
    )


def makespan(tasks: Sequence[float], num_threads: int) -> float:
    """Returns the time until all tasks are done, on cores of their own.

    Each thread takes the next task, in their order, when it has finished one: list
    scheduling (Graham 1966, doi:10.1002/j.1538-7305.1966.tb01709.x).
    """
    ends = [0.0] * num_threads
    for seconds in tasks:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def table(alone: StepWork, others: Sequence[StepWork]) -> str:
    """Returns how the work divides for each number of threads, by that with one."""
    rest = max(alone.process_seconds - alone.op_seconds, 0)
    lines = [
        f"processor time of a step with one thread: {alone.process_seconds:.2f} s,"
        f" {rest / alone.process_seconds:.1%} of it outside the compiled ops",
        "",
        f"{'threads':>7} {'tasks':>7} {'serial':>7} {'in ops':>7} {'longest':>8}"
        f" {'efficiency':>10}",
    ]
    for step in others:
        serial = sum(call.serial for call in step.ops)
        span = sum(call.span(step.num_threads) for call in step.ops)
        work = step.op_seconds
        num_tasks = sum(len(region) for call in step.ops for region in call.regions)
        lines.append(
            f"{step.num_threads:7} {num_tasks:7}"
            f" {(serial + rest) / (work + rest):7.2%} {serial / work:7.2%}"
            f" {span:7.3f}s"
            f" {(work + rest) / (step.num_threads * (span + rest)):10.1%}"
        )
    lines += [
        "",
        "serial: the share of the work that one thread does while the others wait",
        "in ops: the same, of the work of the compiled ops alone",
        "longest: the time of the compiled ops on so many cores",
        "efficiency: the work / (threads x the time on so many cores)",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(program.run(main))
