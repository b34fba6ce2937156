"""Measures how many images per second this machine trains on, or evaluates.

python eval/benchmark.py --model=resnet50 --precision=bf16 --batch_size=32
mpirun -np 2 python eval/benchmark.py --precision=bf16 --batch_size=16
python eval/benchmark.py --precision=bf16 --sweep_ranks
python eval/benchmark.py --batch_size=16 --ranks=2 --vs='PEER & PEER & wait'

It runs the step of training on random images, or on those of --data_dir. --vs
compares with another program, a shell command, in alternating runs. That
program prints lines of JSON; their images_per_second values (a number, or an
object with a median) are summed.
"""

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from eval import flag_topics, measuring, peer_pairs, rank_layouts
from eval.benchmark_report import Report
from eval.benchmark_settings import Settings, check_batch_size
from resnet import shared_flags
from resnet.base.errors import UserError, parse_flags
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware import physical_cores
from resnet.hardware.placement import ProcessInfo
from resnet.models import names
from resnet.runtime import host_warnings, program, startup

FLAGS = flags.FLAGS

PAIRS = 5
_SHARED_FLAGS = (
    "data_dir",
    "num_intra_threads",
    "num_inter_threads",
    "num_parallel_calls",
    "on_bad_record",
    "kmp_blocktime",
)


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program.

    It is called when the program starts, not when it is imported, since training
    defines flags of the same names.
    """
    define_string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    define_integer = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
    define_bool = functools.partial(flags.DEFINE_bool, flag_values=flag_values)
    define_string("model", Settings.model, f"Network: {', '.join(names.MODELS)}.")
    define_string(
        "precision",
        Settings.precision,
        "Precision: float32, bf16, or auto for the faster one.",
    )
    define_integer(
        "batch_size",
        Settings.batch_size,
        "Images per step and rank; with --sweep_ranks, images per step of all ranks.",
    )
    define_integer(
        "image_size", None, "Side of the images in pixels. By default the network's."
    )
    define_integer("steps", Settings.steps, "Number of timed steps.")
    define_integer(
        "warmup_steps",
        Settings.warmup_steps,
        "Number of untimed warmup steps before the timed ones.",
    )
    define_bool("infer", Settings.infer, "Measure evaluation instead of training.")
    define_bool(
        "stock_ops",
        Settings.stock_ops,
        "Use TensorFlow's own ops instead of the compiled ones.",
    )
    define_bool(
        "average_gradients",
        Settings.average_gradients,
        "Whether the ranks all-reduce their gradients.",
    )
    define_bool("profile", False, "Print a profile of one step by kind of op.")
    define_bool("json", False, "Print the results as JSON too, in the last line.")
    define_string(
        "vs",
        None,
        "Shell command of another benchmark to compare with; it prints JSON lines.",
    )
    define_integer("pairs", PAIRS, "Number of A/B repetitions of --vs.")
    define_integer(
        "ranks", 0, "Ranks of this program in --vs; 0 for one process without mpirun."
    )
    define_bool(
        "sweep_ranks",
        False,
        "Measure all combinations of ranks and threads that use all cores.",
    )


def main(argv: Sequence[str], process: ProcessInfo, communicator: Communicator) -> None:
    """Measures as the flags say."""
    with communicator.collective_errors():
        parse_flags(argv, __doc__, flag_topics.BENCHMARK)
        fields = dataclasses.fields(Settings)
        settings = Settings(**{field.name: FLAGS[field.name].value for field in fields})
        settings.check()
        check_flags(process)
    if FLAGS.vs or FLAGS.sweep_ranks:
        # Errors are reported as those of several ranks are.
        with communicator.collective_errors():
            result = compare(settings) if FLAGS.vs else sweep(settings)
    else:
        result = measure(settings, process, communicator).as_dict()
    if FLAGS.json:
        print(json.dumps(result), flush=True)


def check_flags(process: ProcessInfo) -> None:
    """Refuses flags that contradict each other.

    Raises:
        UserError: With a sentence for the first contradiction.
    """
    modes = [name for name in ("vs", "sweep_ranks", "profile") if FLAGS[name].value]
    if len(modes) > 1:
        raise UserError(f"--{modes[0]} and --{modes[1]} exclude each other; got both.")
    if process.num_ranks > 1 and (FLAGS.vs or FLAGS.sweep_ranks):
        raise UserError(f"--{modes[0]} starts its ranks itself; run it without mpirun.")
    if not FLAGS.vs and (FLAGS["ranks"].present or FLAGS["pairs"].present):
        raise UserError("--ranks and --pairs need --vs; leave them out.")
    if FLAGS.pairs < 1 or FLAGS.ranks < 0:
        raise UserError(
            "--pairs must be at least 1 and --ranks at least 0; got"
            f" {FLAGS.pairs} and {FLAGS.ranks}."
        )


def compare(settings: Settings) -> dict[str, Any]:
    """Compares with the command of --vs; prints and returns the figures."""
    arguments = settings.arguments()

    def ours() -> float:
        run = measuring.run_benchmark(arguments, FLAGS.ranks)
        return measuring.images_per_second([run])

    def theirs() -> float:
        runs = measuring.run_peer(FLAGS.vs)
        return measuring.images_per_second(runs)

    pairs = peer_pairs.compare(ours, theirs, FLAGS.pairs)
    return {
        **pairs.as_dict(),
        "ranks": FLAGS.ranks,
        **dataclasses.asdict(settings),
        "vs": FLAGS.vs,
    }


def sweep(settings: Settings) -> dict[str, Any]:
    """Measures all layouts of ranks; prints and returns the figures."""
    num_cores = len(physical_cores.usable())
    run = measuring.run_benchmark
    return {"layouts": rank_layouts.sweep(settings, num_cores, run)}


def measure(
    settings: Settings, process: ProcessInfo, communicator: Communicator
) -> Report:
    """Measures on all ranks; prints the figures and returns them."""
    record_set = None
    if settings.data_dir:
        record_set = record_sets.open_record_set(
            settings.data_dir, "train", process, communicator
        )
    num_classes = settings.num_random_classes
    if record_set:
        num_classes = len(record_set.manifest.class_names)
        num_examples = record_set.manifest.splits["train"].num_examples
        with communicator.collective_errors():
            check_batch_size(settings.batch_size, communicator.num_ranks, num_examples)
    startup.check_same_settings(
        "data set and settings", record_set, settings, communicator
    )
    shards = {}
    if record_set:
        shards = startup.check_shards(record_set, ["train"], "example", communicator)
    with host_warnings.gathered(communicator):
        threads = startup.start_on_own_cores(
            process,
            communicator,
            settings.num_intra_threads,
            settings.num_inter_threads,
            settings.kmp_blocktime,
        )
        from eval import throughput

        example_shards = {}
        if record_set:
            example_shards = startup.open_shards(record_set, shards, communicator)
        report, profile = throughput.measure(
            settings,
            num_classes,
            example_shards.get("train"),
            threads,
            FLAGS.profile,
            communicator,
        )
    print(report.table())
    if profile:
        print(f"\n{profile.table()}")
    return report


def run() -> None:
    """Runs the program and exits."""
    shared_flags.keep_only(_SHARED_FLAGS)
    define_flags(FLAGS)
    program.run(main)


if __name__ == "__main__":
    run()
