"""The processor times of the tasks that the compiled ops divide their work into."""

import contextlib
import ctypes
import heapq
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OpCall:
    """What one call of an op did, in seconds of processor time.

    Attributes:
        op: The type of the op.
        serial: The time outside all regions, on one thread.
        regions: The time of each task of each region. A region divides work into tasks,
            and the next one starts when all are done.
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
        return self.serial + sum(
            makespan(region, num_threads) for region in self.regions
        )


def makespan(tasks: Sequence[float], num_threads: int) -> float:
    """Returns the time until all tasks are done.

    Each thread takes the next task, in their order, when it has finished one: list
    scheduling (Graham 1966, doi:10.1002/j.1538-7305.1966.tb01709.x).

    Args:
        tasks: The seconds of each task.
        num_threads: The number of threads, each on a core of its own.
    """
    ends = [0.0] * num_threads
    for seconds in tasks:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


@contextlib.contextmanager
def recorded(file: Path) -> Iterator[list[OpCall]]:
    """Records the compiled ops that run in the block, into the list that it yields.

    Args:
        file: A new file for the library to write to.

    Raises:
        OSError: If the file can't be written.
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
        regions = tuple(
            tuple(float(row[4]) for row in region) for _, region in by_region
        )
        calls.append(OpCall(op, float(serial), regions))
    return calls


def median_calls(steps: Sequence[Sequence[OpCall]]) -> tuple[OpCall, ...]:
    """Returns the calls of a step, each time the median over several steps.

    Args:
        steps: The calls of steps that did the same. Ops that don't depend on each other
            may run in any order, so those of one kind are matched by their number.

    Raises:
        ValueError: If the steps did not divide their work alike.
    """
    ordered = [sorted(step, key=_division) for step in steps]
    if any(
        list(map(_division, step)) != list(map(_division, ordered[0]))
        for step in ordered
    ):
        raise ValueError("the recorded steps divided their work differently")
    return tuple(_median(calls) for calls in zip(*ordered, strict=True))


def _division(call: OpCall) -> tuple[str, tuple[int, ...]]:
    return call.op, tuple(map(len, call.regions))


def _median(calls: Sequence[OpCall]) -> OpCall:
    return OpCall(
        calls[0].op,
        statistics.median(call.serial for call in calls),
        tuple(
            tuple(map(statistics.median, zip(*regions, strict=True)))
            for regions in zip(*(call.regions for call in calls), strict=True)
        ),
    )
