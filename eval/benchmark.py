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
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program as base_program  # Before imports that may fail.

# isort: split

from eval.benchmarking import jobs
from eval.benchmarking.settings import Settings, check_batch_size
from resnet.base import cli, commands
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.base.settings import COUNT, COUNT_OR_ZERO, setting
from resnet.config.command_line import JobSettings
from resnet.config.config import Config
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware import physical_cores
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import host_warnings, program, startup


@dataclass(frozen=True)
class Runs:
    """What is run and printed, apart from what is measured."""

    TOPIC: ClassVar[str] = "How it is measured"

    profile: bool = setting(False, "Print a profile of one step by kind of op.")
    json: bool = setting(False, "Print the results as JSON too, in the last line.")
    sweep_ranks: bool = setting(
        False, "Measure all combinations of ranks and threads that use all cores."
    )
    vs: str = setting(
        "",
        "Shell command of another benchmark to compare with; it prints JSON lines.",
        unset="none",
    )
    ranks: int = setting(
        0,
        "Ranks of this program in --vs; 0 for one process without mpirun.",
        bounds=COUNT_OR_ZERO,
    )
    pairs: int = setting(5, "Number of A/B repetitions of --vs.", bounds=COUNT)


FLAGS: cli.Groups = (
    cli.Flags(Settings, common=True),
    cli.Flags(Runs, common=True),
    cli.Flags(Config, names=("data_dir",), has_defaults=False, unset="random images"),
    cli.Flags(Config, names=("num_parallel_calls", "on_bad_record")),
    cli.Flags(JobSettings, without=("stall_seconds", "use_tpu")),
)


def main(argv: Sequence[str]) -> int:
    """Measures as the flags say, as one of the ranks of a job."""
    return program.run(run_benchmark, argv)


def run_benchmark(
    argv: Sequence[str], process: ProcessInfo, communicator: Communicator
) -> None:
    """Measures, and prints the figures on rank 0."""
    with communicator.collective_errors():
        line = cli.parse(argv, __doc__, FLAGS)
        settings, runs = line.of(Settings), line.of(Runs)
        check(settings, runs, line.given, process)
    if runs.vs or runs.sweep_ranks:
        # Errors are reported as those of several ranks are.
        with communicator.collective_errors():
            result = compare(settings, runs) if runs.vs else sweep(settings)
    else:
        job = line.of(JobSettings)
        result = measure(settings, job, runs.profile, process, communicator)
    if runs.json:
        print_result(json.dumps(result))


def check(
    settings: Settings, runs: Runs, given: Collection[str], process: ProcessInfo
) -> None:
    """Refuses settings that contradict each other, with a UserError."""
    if settings.infer and settings.data_dir:
        raise UserError(
            "--infer measures the network alone, on images from memory; leave"
            " --data_dir out."
        )
    modes = [name for name in ("vs", "sweep_ranks", "profile") if getattr(runs, name)]
    if len(modes) > 1:
        raise UserError(f"--{modes[0]} and --{modes[1]} exclude each other; got both.")
    if process.num_ranks > 1 and (runs.vs or runs.sweep_ranks):
        raise UserError(f"--{modes[0]} starts its ranks itself; run it without mpirun.")
    if not runs.vs and ("ranks" in given or "pairs" in given):
        raise UserError("--ranks and --pairs need --vs; leave them out.")
    if runs.sweep_ranks and settings.num_intra_threads:
        raise UserError(
            "--sweep_ranks chooses the threads of each layout itself; leave"
            " --num_intra_threads out."
        )


def measure(
    settings: Settings,
    job: JobSettings,
    with_profile: bool,
    process: ProcessInfo,
    communicator: Communicator,
) -> dict[str, Any]:
    """Measures on all ranks; prints the figures and returns them."""
    record_set = None
    num_classes = settings.num_random_classes
    if settings.data_dir:
        record_set = record_sets.open_record_set(
            settings.data_dir, "train", process, communicator
        )
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
        threads = startup.start_on_own_cores(process, communicator, job)
        from eval.benchmarking import throughput

        shard = None
        if record_set:
            shard = startup.open_shards(record_set, shards, communicator)["train"]
        report, profile = throughput.measure(
            settings, num_classes, shard, threads, with_profile, communicator
        )
    print_result(report.table())
    if profile:
        print(f"\n{profile.table()}")
    return report.figures


def compare(settings: Settings, runs: Runs) -> dict[str, Any]:
    """Compares with the command of --vs; prints and returns the figures."""

    def ours() -> float:
        result = jobs.run_benchmark(settings.arguments(), runs.ranks)
        return float(result["images_per_second"])

    return {
        **compare_in_pairs(ours, lambda: jobs.run_peer(runs.vs), runs.pairs),
        "ranks": runs.ranks,
        **dataclasses.asdict(settings),
        "vs": runs.vs,
    }


def compare_in_pairs(
    ours: Callable[[], float], theirs: Callable[[], float], num_pairs: int
) -> dict[str, Any]:
    """Measures two rates alternately, prints each pair, and returns the ratios.

    The speed of a machine drifts, so each ratio is that of two consecutive runs.
    """
    print(f"{'pair':>4} {'ours':>10} {'theirs':>10} {'ratio':>7}", flush=True)
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    ratios = []
    for number in range(1, num_pairs + 1):
        our_rate, their_rate = ours(), theirs()
        rates["ours"].append(our_rate)
        rates["theirs"].append(their_rate)
        ratios.append(our_rate / their_rate)
        print(
            f"{number:4} {our_rate:10,.2f} {their_rate:10,.2f} {ratios[-1]:7.3f}",
            flush=True,
        )
    print_result(f"ours / theirs: median {jobs.spread(ratios)}")
    shown = {"ratio": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {**{name: round(value, 4) for name, value in shown.items()}, **rates}


def layouts(num_cores: int, batch_size: int) -> list[tuple[int, int]]:
    """Returns the numbers of ranks, and of threads of each, that a sweep measures.

    They are all numbers of ranks that divide the cores and the batch. On more than two
    cores, the last layout leaves one core free for other work, such as communication.
    """
    tried = [
        (num_ranks, num_cores // num_ranks)
        for num_ranks in _divisors(num_cores)
        if batch_size % num_ranks == 0
    ]
    if num_cores > 2:
        fewer = num_cores - 1
        most = max(ranks for ranks in _divisors(fewer) if batch_size % ranks == 0)
        tried.append((most, fewer // most))
    return tried


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def sweep(settings: Settings) -> dict[str, Any]:
    """Measures all layouts of ranks, prints a table and the fastest, returns both."""
    num_cores = len(physical_cores.usable())
    tried = layouts(num_cores, settings.batch_size)
    print(
        f"{settings.model}, {settings.precision}, {settings.batch_size} images per step"
        f" over all ranks, cores: {num_cores}"
    )
    titles = ("images/s", "min", "max", "MB/rank")
    print(f"{'ranks x threads':15}", *(f"{title:>10}" for title in titles), flush=True)
    line = (
        "{images_per_second:10,.1f} {min:10,.1f} {max:10,.1f} {peak_memory_mb:10,.0f}"
    )
    results = []
    for num_ranks, num_threads in tried:
        batch_size = settings.batch_size // num_ranks
        per_rank = dataclasses.replace(
            settings, batch_size=batch_size, num_intra_threads=num_threads
        )
        # Before the measurement, which takes minutes.
        print(f"{f'{num_ranks} x {num_threads}':15} ", end="", flush=True)
        results.append(jobs.run_benchmark(per_rank.arguments(), num_ranks))
        print(line.format(**results[-1]), flush=True)
    rates = [result["images_per_second"] for result in results]
    num_ranks, num_threads = tried[rates.index(max(rates))]
    print(f"fastest: {num_ranks} x {num_threads}")
    print_result(f"    {command(settings, num_ranks, num_threads)}")
    return {"layouts": results}


def command(settings: Settings, num_ranks: int, num_threads: int) -> str:
    """Returns the command that trains, or evaluates, on so many ranks and threads."""
    words = [f"--num_intra_threads={num_threads}"]
    if settings.num_inter_threads:
        words.append(f"--num_inter_threads={settings.num_inter_threads}")
    data_dir = pathlib.Path(settings.data_dir or "RECORDS")
    model_dir = "MODEL" if settings.infer else f"{data_dir}-model"
    words += [f"--data_dir={data_dir}", f"--model_dir={model_dir}"]
    if settings.infer:
        words.insert(0, f"--eval_batch_size={settings.batch_size}")
        return commands.command("resnet-eval", *words, num_ranks=num_ranks)
    of_network = [f"--model={settings.model}", f"--precision={settings.precision}"]
    if settings.image_size:
        of_network.append(f"--image_size={settings.image_size}")
    of_network.append(f"--train_batch_size={settings.batch_size}")
    words = of_network + words
    return commands.command("resnet-train", *words, num_ranks=num_ranks)


if __name__ == "__main__":
    sys.exit(base_program.run(main))
