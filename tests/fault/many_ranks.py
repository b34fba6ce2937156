"""Starts the training program on many ranks of this machine, and measures the start.

    python -m tests.fault.many_ranks 2 8 16 32

prints a table of what grows with the number of ranks. A rank takes some 0.3 GB.
"""

import dataclasses
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import smallest, tiny_set
from tests.fault.job import MPIRUN, Job

_END_SECONDS = 900.0
IMAGES_PER_CLASS = 24  # A global batch is at most an epoch.
STEPS = 6
FLAGS = (
    "--recipe=digits",
    smallest.FLAG,
    f"--train_steps={STEPS}",
    "--warmup_steps=2",
    "--log_step_count_steps=2",
    "--checkpoint_every=3",
    "--eval_every=6",
    "--num_intra_threads=1",
    "--num_parallel_calls=1",
)
_MEMORY = re.compile(r"^Pss:\s+(\d+) kB", re.M)


@dataclasses.dataclass(frozen=True)
class Start:
    """What a training of 6 steps took on some ranks.

    Attributes:
        num_ranks: Their number.
        exit_code: Of mpirun.
        output: What was printed.
        leftovers: What was left running or in temporary folders.
        began: Seconds from the start of mpirun to what all ranks had begun then.
        end_seconds: Seconds from then to the end of mpirun.
        processor_seconds: Of each rank, without its watchdog.
        agreed_bytes: What each rank has received through MPI, but for the weights.
        weight_bytes: The weights and other variables that each rank has received.
        num_calls: Of MPI's operations, of each rank.
        num_processes: All of the job's, mpirun's among them.
        num_connections: TCP connections of rank 0's watchdog.
        rank_bytes: Memory of a rank and the processes beside it, on average; shared
            pages are divided among those that share them.
        watchdog_bytes: The part of its watchdog, on average.
        shared_memory_bytes: Of the MPI library, in /dev/shm.
        num_files: In the folder of the run.
    """

    num_ranks: int
    exit_code: int
    output: str
    leftovers: list[str]
    began: dict[str, float]
    end_seconds: float
    processor_seconds: list[float]
    agreed_bytes: list[int]
    weight_bytes: list[int]
    num_calls: list[int]
    num_processes: int
    num_connections: int
    rank_bytes: float
    watchdog_bytes: float
    shared_memory_bytes: int
    num_files: int

    @property
    def num_lines(self) -> int:
        """The number of lines that were printed."""
        return len(self.output.splitlines())

    def facts(self) -> dict[str, Any]:
        """Returns the row of a table."""
        return {
            "ranks": self.num_ranks,
            "exit code": self.exit_code,
            "left": self.leftovers,
            "began": {name: round(at, 1) for name, at in self.began.items()},
            "end s": round(self.end_seconds, 1),
            "processor s a rank": round(statistics.mean(self.processor_seconds), 1),
            "bytes of rank 0": self.agreed_bytes[0],
            "bytes of another": max(self.agreed_bytes[1:]),
            "bytes of weights": max(self.weight_bytes),
            "calls": max(self.num_calls),
            "processes": self.num_processes,
            "connections": self.num_connections,
            "MB a rank": round(self.rank_bytes / 1e6),
            "MB a watchdog": round(self.watchdog_bytes / 1e6, 1),
            "MB in /dev/shm": round(self.shared_memory_bytes / 1e6, 1),
            "files": self.num_files,
            "lines": self.num_lines,
        }


def start(num_ranks: int, records: Path, folder: Path, *flags: str) -> Start:
    """Trains 6 steps on some ranks, and looks at the job while it trains.

    Args:
        num_ranks: Their number, at least 2.
        records: A record set of at least one image.
        folder: An empty folder.
        flags: Further flags of the training.
    """
    counts, model_dir = folder / "counts", folder / "model"
    counts.mkdir()
    own = [str(counts), *FLAGS, f"--data_dir={records}", f"--model_dir={model_dir}"]
    own += [f"--train_batch_size={num_ranks}", f"--eval_batch_size={num_ranks}"]
    os.environ["RESNET_TEST_STARTED"] = str(time.time())
    begin = time.monotonic()
    launcher = [str(MPIRUN), "-np", str(num_ranks)]
    program = "tests/fault/counted_main.py"
    with Job(launcher, num_ranks, [*own, *flags], program) as job:
        job.wait_until(lambda: job.step >= 2, 0.05, _END_SECONDS)
        watchdogs = list(job.processes_of(b"resnet.watchdog.monitor"))
        processes = list(job.processes_of(b""))
        memory, of_watchdogs = _memory(processes), _memory(watchdogs)
        connections = _num_connections(job.watchdog_pid(0))
        segments = [Path("/dev/shm", name) for name in job.segments]
        shared = sum(path.stat().st_blocks * 512 for path in segments if path.exists())
        code = job.end(_END_SECONDS)
        end = time.monotonic() - begin
        output, leftovers = job.output, job.leftovers()
    facts = [
        json.loads((counts / f"{rank}.json").read_text()) for rank in range(num_ranks)
    ]
    weights = [one["received_bytes"].pop("Bcast", 0) for one in facts]
    agreed = [sum(one["received_bytes"].values()) for one in facts]
    began = {name: max(one["began"][name] for one in facts) for name in _stages(facts)}
    return Start(
        *(num_ranks, code, output, leftovers, began),
        end_seconds=end - began["deregistering"],
        processor_seconds=[one["processor_seconds"] for one in facts],
        agreed_bytes=agreed,
        weight_bytes=weights,
        num_calls=[sum(one["calls"].values()) for one in facts],
        num_processes=len(processes),
        num_connections=connections,
        rank_bytes=memory / num_ranks,
        watchdog_bytes=of_watchdogs / num_ranks,
        shared_memory_bytes=shared,
        num_files=sum(path.is_file() for path in model_dir.rglob("*")),
    )


def _stages(facts: Sequence[dict[str, dict[str, float]]]) -> Iterator[str]:
    """Yields what all ranks have reported, in the order of rank 0."""
    for name in facts[0]["began"]:
        if all(name in one["began"] for one in facts):
            yield name


def _memory(processes: Sequence[int]) -> int:
    """Returns the bytes of processes; shared pages count by their part."""
    total = 0
    for pid in processes:
        try:
            found = _MEMORY.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except OSError:  # It has ended.
            continue
        total += int(found[1]) << 10 if found else 0
    return total


def _num_connections(pid: int) -> int:
    """Returns the number of established TCP connections of a process."""
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(entry))
        except OSError:
            continue
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    established = "01"
    fields = [line.split() for line in lines]
    return sum(f"socket:[{one[9]}]" in own and one[3] == established for one in fields)


def main(numbers: Sequence[str]) -> None:
    """Prints a line for each number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_set.make(Path(folder), IMAGES_PER_CLASS)
        for number in numbers:
            own = Path(folder, number)
            own.mkdir()
            one = start(int(number), Path(folder, "records"), own)
            print(json.dumps(one.facts()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
