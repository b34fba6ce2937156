"""Jobs that are about to be harmed, and a table of how they ended."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.job import Job

STALL_SECONDS = 5
# A small net that trains some 10 steps a second, and saves every fifth.
FLAGS = (
    "--recipe=digits",
    "--model=resnet9",
    "--train_batch_size=12",
    "--train_steps=5000",
    "--warmup_steps=2",
    "--peak_learning_rate=0.01",
    "--mode=train",
    "--log_step_count_steps=1",
    "--checkpoint_every=5steps",
    "--keep_checkpoints=3",
    f"--stall_seconds={STALL_SECONDS}",
    "--num_intra_threads=1",
    "--num_parallel_calls=1",
)

StartJob = Callable[..., Job]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return tmp_path / "model"


@pytest.fixture
def start(records: Path, model_dir: Path) -> Iterator[StartJob]:
    """Returns `start(*flags, num_ranks=2, fault=())`, whose jobs end with the test."""
    started: list[Job] = []

    def start_job(
        *flags: str, num_ranks: int = 2, fault: tuple[str, ...] = (), **facts: object
    ) -> Job:
        arguments = [*fault, *FLAGS, f"--data_dir={records}"]
        arguments += [f"--model_dir={model_dir}", *flags]
        program = "tests/fault/faulty_main.py" if fault else "resnet/resnet_main.py"
        started.append(Job(num_ranks, arguments, program, **facts))  # type: ignore[arg-type]
        return started[-1]

    yield start_job
    for job in started:
        job.__exit__()


@pytest.fixture
def outcome() -> Callable[..., None]:
    """Returns `outcome(fault, job, ...)`, which adds a line to FAULTS_TABLE, a file."""

    def note(fault: str, job: Job, code: int) -> None:
        if path := os.environ.get("FAULTS_TABLE"):
            line = {"fault": fault, "seconds": job.ended_after, "exit_code": code}
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")

    return note
