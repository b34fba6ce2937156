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
import functools
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from absl import flags

from eval.lab import task_times
from resnet.base import errors
from resnet.base.errors import UserError
from resnet.models import names
from resnet.runtime import startup

FLAGS = flags.FLAGS

NUM_CLASSES = 1000
MOST_THREADS = 256
RECORDED_STEPS = 3  # A task's time is the median.


@dataclass(frozen=True)
class StepWork:
    """The work of a step with some number of threads.

    Attributes:
        num_threads: The number of threads that the work is divided for.
        ops: What the compiled ops did, one after the other.
        process_seconds: The processor time of the whole step, by all threads. It has a
            meaning with one thread only, since others spin while they wait.
    """

    num_threads: int
    ops: tuple[task_times.OpCall, ...]
    process_seconds: float

    @property
    def op_seconds(self) -> float:
        """The processor time of the compiled ops, by all threads."""
        return sum(call.work for call in self.ops)


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program, when it starts."""
    flags.DEFINE_enum(
        "model", "resnet50", names.MODELS, "Network.", flag_values=flag_values
    )
    flags.DEFINE_enum(
        "precision",
        "float32",
        tuple(names.COMPUTE_DTYPES),
        "Precision of the step.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "batch_size",
        48,
        "Number of images of the step; the published run has 48 on each rank.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "image_size",
        None,
        "Side of the images in pixels. Default: the network's.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_list(
        "threads",
        ["1", "2", "8", "22", "32"],
        "Numbers of threads to divide the work for, separated by commas.",
        flag_values=flag_values,
    )


def main() -> None:
    """Records a step for each number of threads and prints how its work divides."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # Without notes on the CPU.
    counts = thread_counts(FLAGS.threads)
    side = FLAGS.image_size or names.default_image_size(FLAGS.model)
    record = functools.partial(
        record_step, FLAGS.model, FLAGS.precision, FLAGS.batch_size, side
    )
    spawn = multiprocessing.get_context("spawn")
    steps = {}
    for count in sorted({1, *counts}):
        # Each needs a process, as TensorFlow's pool starts only once.
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as process:
            steps[count] = process.submit(record, count).result()
    print(table(steps[1], [steps[count] for count in counts]))


def thread_counts(values: Sequence[str]) -> list[int]:
    """Returns the numbers of threads of the flag.

    Raises:
        UserError: If one is not a number of threads.
    """
    for value in values or [""]:  # An empty flag is no number either.
        if not value.isdecimal() or not 1 <= int(value) <= MOST_THREADS:
            raise UserError(
                f"--threads must be numbers from 1 to {MOST_THREADS}, separated by"
                f" commas; got {value!r}"
            )
    return [int(value) for value in values]


def record_step(
    model: str, precision: str, batch_size: int, image_size: int, num_threads: int
) -> StepWork:
    """Returns the work of a training step, divided for a number of threads.

    Args:
        model: The network.
        precision: "float32" or "bf16".
        batch_size: The number of images.
        image_size: Their side in pixels.
        num_threads: The number of threads, which may exceed that of the cores.
    """
    startup.import_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    from eval import throughput
    from eval.benchmark_settings import Settings
    from resnet import native
    from resnet.distributed.communicator import Communicator
    from resnet.hardware.placement import ProcessInfo

    if native.ops() is None:
        raise UserError("the tasks are those of the compiled ops, which are missing")
    settings = Settings(
        model=model, precision=precision, batch_size=batch_size, image_size=image_size
    )
    network = throughput.build_network(settings, NUM_CLASSES)
    step = throughput.training_step(
        network, settings.phase, Communicator(ProcessInfo())
    )
    images = throughput.images_from_memory(batch_size, image_size, NUM_CLASSES, 0)
    step(*next(images))
    recorded = []
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(RECORDED_STEPS):
            start = time.process_time()
            with task_times.recorded(pathlib.Path(folder, "tasks")) as calls:
                step(*next(images))
                seconds.append(time.process_time() - start)
            recorded.append(calls)
    return StepWork(
        num_threads, task_times.median_calls(recorded), statistics.median(seconds)
    )


def table(alone: StepWork, others: Sequence[StepWork]) -> str:
    """Returns how the work divides for each number of threads.

    Args:
        alone: The step with one thread, whose processor time is known.
        others: The steps to show.
    """
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


def run() -> None:
    """Runs the program."""
    define_flags(FLAGS)
    errors.run(main)


if __name__ == "__main__":
    run()
