"""Finds the fastest combination of ranks and threads for a machine."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eval.benchmark_settings import Settings
from resnet.base.errors import UserError

Run = Callable[[Sequence[str], int], dict[str, Any]]


@dataclass(frozen=True)
class Layout:
    """A number of ranks on one machine and of their threads.

    Attributes:
        num_ranks: The number of ranks.
        num_threads: The number of intra-op threads per rank.
    """

    num_ranks: int
    num_threads: int

    def __str__(self) -> str:
        return f"{self.num_ranks} x {self.num_threads}"


def layouts(num_cores: int, batch_size: int) -> list[Layout]:
    """Returns the layouts to try: each number of ranks that divides cores and batch.

    On more than two cores, the last layout leaves one core free for other work, such as
    communication. It has the largest number of ranks that divides the remaining cores
    and the batch.

    Args:
        num_cores: The number of cores of the machine.
        batch_size: The number of images in one step of all ranks.
    """
    found = [
        Layout(num_ranks, num_cores // num_ranks)
        for num_ranks in _divisors(num_cores)
        if batch_size % num_ranks == 0
    ]
    if num_cores > 2:
        fewer = num_cores - 1
        most = max(ranks for ranks in _divisors(fewer) if batch_size % ranks == 0)
        found.append(Layout(most, fewer // most))
    return found


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def sweep(settings: Settings, num_cores: int, run: Run) -> list[dict[str, Any]]:
    """Measures all layouts, prints a table and the fastest; returns their results.

    Args:
        settings: The settings of the measurement, with the `batch_size` of all ranks.
        num_cores: The number of cores that this process may use.
        run: A function that runs the benchmark with flags on a number of ranks, and
            returns its JSON object.

    Raises:
        UserError: If `num_intra_threads` is set, or a run fails.
    """
    if settings.num_intra_threads:
        raise UserError(
            "--sweep_ranks chooses the threads of each layout itself; leave"
            " --num_intra_threads out."
        )
    tried = layouts(num_cores, settings.batch_size)
    print(
        f"{settings.model}, {settings.precision}, {settings.batch_size} images per step"
        f" over all ranks, {num_cores} core(s)"
    )
    if skipped := [n for n in _divisors(num_cores) if settings.batch_size % n]:
        print(
            f"skipped, since they do not divide --batch_size={settings.batch_size}:"
            f" {', '.join(map(str, skipped))} ranks"
        )
    print(
        f"{'ranks x threads':15} {'images/s':>10} {'min':>10} {'max':>10}"
        f" {'MB/rank':>10}",
        flush=True,
    )
    results = []
    for layout in tried:
        per_rank = dataclasses.replace(
            settings,
            batch_size=settings.batch_size // layout.num_ranks,
            num_intra_threads=layout.num_threads,
        )
        result = run(per_rank.arguments(), layout.num_ranks)
        results.append(result)
        print(
            f"{layout!s:15} {result['images_per_second']:10,.1f} {result['min']:10,.1f}"
            f" {result['max']:10,.1f} {result['peak_memory_mb']:10,.0f}",
            flush=True,
        )
    rates = [result["images_per_second"] for result in results]
    fastest = tried[rates.index(max(rates))]
    print(f"fastest: {fastest}")
    print(f"    {command(settings, fastest)}")
    return results


def command(settings: Settings, layout: Layout) -> str:
    """Returns the command that trains, or evaluates, with a layout."""
    start = f"mpirun -np {layout.num_ranks} python"
    threads = f"--num_intra_threads={layout.num_threads}"
    if settings.num_inter_threads:
        threads += f" --num_inter_threads={settings.num_inter_threads}"
    folders = f"--data_dir={settings.data_dir or 'RECORDS'} --model_dir=MODEL"
    if settings.infer:
        batch = f"--eval_batch_size={settings.batch_size}"
        return f"{start} eval/resnet_eval.py {batch} {threads} {folders}"
    flags = f"--model={settings.model} --precision={settings.precision}"
    if settings.image_size:
        flags += f" --image_size={settings.image_size}"
    batch = f"--train_batch_size={settings.batch_size}"
    return f"{start} resnet/resnet_main.py {flags} {batch} {threads} {folders}"
