"""Jobs into which tests inject faults, and a table of how they ended.

Each fault is injected on one host or, as a slow test, on two simulated ones; on both if
FAULTS_TABLE asks for a table of all.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests import smallest
from tests.fault.hosts import Hosts, NoNamespaces, two_hosts
from tests.fault.job import MPIRUN, Job

STALL_SECONDS = 5
# A small net that trains some 10 steps a second, and saves every fifth.
FLAGS = (
    "--recipe=digits",
    smallest.FLAG,
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

# A network whose checkpoints, of 53 MB, take a while to be written and read.
LARGE_CHECKPOINTS = "--model=resnet9"

StartJob = Callable[..., Job]


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out slow tests on one host that root can run on two hosts."""
    if os.geteuid() != 0 or "FAULTS_TABLE" in os.environ:
        return
    names = {item.nodeid for item in items}
    spared = [
        item
        for item in items
        if item.get_closest_marker("slow")
        and "1 host" in item.nodeid
        and item.nodeid.replace("1 host", "2 hosts") in names
    ]
    config.hook.pytest_deselected(items=spared)
    items[:] = [item for item in items if item not in spared]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return tmp_path / "model"


@pytest.fixture(
    params=[1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.root])],
    ids=["1 host", "2 hosts"],
)
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts | None]:
    """Two hosts, or None for this machine as it is. Two need root."""
    if request.param == 1:
        yield None
        return
    try:
        with two_hosts(tmp_path) as made:
            yield made
    except NoNamespaces as error:
        pytest.skip(str(error))


@pytest.fixture
def mpirun(hosts: Hosts | None) -> Callable[[int], list[str]]:
    """Returns `mpirun(num_ranks)`, the command that starts them on the test's hosts."""

    def command(num_ranks: int) -> list[str]:
        if hosts is None:
            return [str(MPIRUN), "-np", str(num_ranks)]
        return hosts.mpirun(MPIRUN, num_ranks)

    return command


@pytest.fixture
def start(
    records: Path, model_dir: Path, mpirun: Callable[[int], list[str]]
) -> Iterator[StartJob]:
    """Returns `start(*flags, num_ranks=2, fault=(), supervisor=(), in_terminal=False)`.

    Its jobs end with the test.
    """
    started: list[Job] = []

    def start_job(
        *flags: str,
        num_ranks: int = 2,
        fault: Sequence[str] = (),
        supervisor: Sequence[str] = (),
        in_terminal: bool = False,
    ) -> Job:
        arguments = [*fault, *FLAGS, f"--data_dir={records}"]
        arguments += [f"--model_dir={model_dir}", *flags]
        program = "tests/fault/faulty_main.py" if fault else "resnet/resnet_main.py"
        launcher = [*supervisor, *mpirun(num_ranks)]
        started.append(Job(launcher, num_ranks, arguments, program, in_terminal))
        return started[-1]

    yield start_job
    for job in started:
        job.__exit__()


@pytest.fixture
def outcome(hosts: Hosts | None) -> Callable[..., None]:
    """Returns `outcome(fault, job, ...)`, which adds a line to FAULTS_TABLE, a file."""

    def note(fault: str, job: Job, code: int) -> None:
        if path := os.environ.get("FAULTS_TABLE"):
            line = {
                "fault": fault,
                "num_hosts": 1 if hosts is None else len(hosts.names),
                "seconds": job.ended_after,
                "exit_code": code,
            }
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")

    return note
