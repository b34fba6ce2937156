"""A start of 32 ranks on this machine, with what it exchanges, prints and leaves."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests import main_run, smallest, tiny_set
from tests.fault.job import MPIRUN, Job
from tests.jobs.conftest import run_ranks  # noqa: F401 - The fixture.

NUM_RANKS = int(os.environ.get("MANY_RANKS", "32"))
NEEDED_BYTES = 400e6 * NUM_RANKS
END_SECONDS = 900.0
STEPS = 6
FLAGS = (
    *("--recipe=digits", smallest.FLAG, f"--train_steps={STEPS}", "--warmup_steps=2"),
    *("--log_step_count_steps=2", "--checkpoint_every=3steps", "--eval_every=6steps"),
    *("--num_intra_threads=1", "--num_parallel_calls=1"),
    *(f"--train_batch_size={NUM_RANKS}", f"--eval_batch_size={NUM_RANKS}"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        psutil.virtual_memory().available < NEEDED_BYTES,
        reason=f"needs {NEEDED_BYTES / 1e9:.0f} GB of free memory",
    ),
]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Returns a set of 72 training and 11 validation images."""
    folder = tmp_path_factory.mktemp("records")
    tiny_set.make(folder, images_per_class=24)
    return folder / "records"


def num_connections(pid: int) -> int:
    """Returns the number of established TCP connections of a process."""
    connections = psutil.Process(pid).net_connections("tcp")
    return sum(connection.status == "ESTABLISHED" for connection in connections)


def memory(processes: Sequence[int]) -> float:
    """Returns the bytes of a rank's part of processes; shared pages are divided."""
    sizes = [psutil.Process(pid).memory_full_info().pss for pid in processes]
    return sum(sizes) / NUM_RANKS


def test_32_ranks_train_as_one_does(records, tmp_path):
    counts, model_dir = tmp_path / "counts", tmp_path / "model"
    counts.mkdir()
    flags = [str(counts), *FLAGS, f"--data_dir={records}", f"--model_dir={model_dir}"]
    launcher = [str(MPIRUN), "-np", str(NUM_RANKS)]
    program = "tests/fault/counted_main.py"
    with Job(launcher, NUM_RANKS, flags, program) as job:
        job.wait_until(lambda: job.step >= 2, 0.05, END_SECONDS)
        # The rank, its wrapper and its watchdog; mpirun and its proxy.
        processes = job.processes_of(b"")
        assert len(processes) == 3 * NUM_RANKS + 2
        of_rank = memory(processes)
        of_watchdog = memory(job.processes_of(b"resnet.watchdog.monitor"))
        segments = [os.stat(f"/dev/shm/{name}") for name in job.segments]
        shared = sum(segment.st_blocks * 512 for segment in segments)
        print(f"bytes of a rank {of_rank:,.0f}, of its watchdog {of_watchdog:,.0f}")
        print(f"bytes of MPI's shared memory {shared:,}")
        assert of_rank < 600e6
        assert of_watchdog < 15e6
        assert shared < 5e6 * NUM_RANKS
        assert num_connections(job.watchdog_pid(0)) == NUM_RANKS - 1
        assert job.end(END_SECONDS) == 0, job.output
        assert job.leftovers() == []
        output = job.output
    assert output.count(f"{NUM_RANKS} ranks: ") == 1
    num_lines = len(output.splitlines())
    num_files = sum(path.is_file() for path in model_dir.rglob("*"))
    print(f"{num_lines} lines printed, {num_files} files")
    assert num_lines < 25, output
    assert num_files < 15
    # Also ranks without an image evaluate.
    (line,) = main_run.evaluation_lines(model_dir)
    assert (line["step"], line["count"]) == (STEPS, 11)
    assert len(re.findall(r"^step 6: top-1 .* on 11 images$", output, re.M)) == 1
    assert_exchanged_little(counts)


def assert_exchanged_little(counts: Path) -> None:
    """Checks that each rank has received only a few numbers of each other."""
    of_ranks = [
        json.loads((counts / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)
    ]
    calls = {sum(counted["calls"].values()) for counted in of_ranks}
    print("calls of MPI's operations", calls)
    assert len(calls) == 1
    received = []
    for counted in of_ranks:
        counted["received_bytes"].pop("Bcast", 0)  # The weights.
        received.append(sum(counted["received_bytes"].values()))
    print(f"received bytes of rank 0 {received[0]:,}, of another {max(received[1:]):,}")
    # The speeds of all at three lines, the digests of their state at two saves, and
    # those of the files that they see; BatchNorm's averages and names go to rank 0.
    assert max(received[1:]) < 10_000 + 100 * NUM_RANKS
    assert received[0] < 10_000 + 6_500 * NUM_RANKS


def test_a_mistake_of_32_ranks_is_one_sentence(run_ranks, records, tmp_path):  # noqa: F811
    flags = (*FLAGS, f"--data_dir={records}", f"--model_dir={tmp_path}")
    batch_size = f"--train_batch_size={NUM_RANKS + 1}"
    job = run_ranks(NUM_RANKS, "resnet/resnet_main.py", *flags, batch_size)
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert f"Use {NUM_RANKS} or {2 * NUM_RANKS}." in job.stderr
