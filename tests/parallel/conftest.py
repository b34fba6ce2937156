"""One pytest session on all ranks of one mpirun, each of which runs the same tests.

    mpirun -np 2 python -m pytest tests/parallel

What a test does on rank 0 alone goes through `lockstep.from_rank_0`; `tmp_path` and
`records` are the same folders on all ranks. A test that fails on one rank fails on all.
Tests marked `ranks(3)` run in a session of three.
"""

import os
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from _pytest.config import create_terminal_writer
from absl import logging

from resnet.config.command_line import JobSettings
from resnet.distributed import communicator as distributed
from resnet.distributed.communicator import Communicator
from resnet.hardware import placement
from resnet.runtime import startup
from resnet.watchdog import scratch_dir
from tests import tiny_set
from tests.parallel import in_process
from tests.parallel.lockstep import Lockstep
from tests.temporary_files import temporary_files  # noqa: F401 - A fixture.

PROCESS = placement.find_process_info(os.environ)
TEST_SECONDS = 600.0  # On two cores that do other things too.
_LOCKSTEP = pytest.StashKey[Lockstep]()
_COMMUNICATOR = pytest.StashKey[Communicator]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Connects the ranks and starts TensorFlow, before a test imports it."""
    if PROCESS.num_ranks == 1:
        return
    logging.use_absl_handler()  # As the programs do before they log.
    communicator = distributed.connect(PROCESS)
    from mpi4py import MPI

    config.stash[_LOCKSTEP] = Lockstep(MPI)
    config.stash[_COMMUNICATOR] = communicator
    if PROCESS.rank != 0:
        path = Path(config._tmp_path_factory.getbasetemp(), "output.txt")
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw = create_terminal_writer(config, path.open("w"))
    one = JobSettings(num_intra_threads=1, num_inter_threads=1)
    startup.settle_placement(PROCESS, communicator, one)
    with mock.patch.object(scratch_dir, "make", return_value=None):
        startup.start_tensorflow(communicator)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keeps the tests of so many ranks, which must be the same on all."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    others = [item for item in items if item not in ours]
    if PROCESS.num_ranks == 1:
        reason = "needs mpirun -np N python -m pytest tests/parallel"
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))
        return
    for item in others:
        item.add_marker(pytest.mark.skip(reason="a test of one process"))
    wanted = [item for item in ours if _num_ranks(item) == PROCESS.num_ranks]
    config.hook.pytest_deselected(
        items=[item for item in ours if _num_ranks(item) != PROCESS.num_ranks]
    )
    items[:] = [*wanted, *others]
    for item in wanted:
        item.add_marker(pytest.mark.timeout(TEST_SECONDS, method="thread"))
    names = config.stash[_LOCKSTEP].gather([item.nodeid for item in items])
    assert all(one == names[0] for one in names), "ranks have found other tests"


def _num_ranks(item: pytest.Item) -> int:
    mark = item.get_closest_marker("ranks")
    return mark.args[0] if mark else 2


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Makes what failed on one rank fail on all."""
    report = yield
    lockstep = item.config.stash.get(_LOCKSTEP, None)
    if lockstep is None:
        return report
    failure = report.longreprtext if report.failed else None
    failures = lockstep.failures(f"{item.nodeid} ({report.when})", failure)
    if not report.failed and any(failures):
        report.outcome = "failed"
        report.longrepr = "\n".join(
            f"failed on rank {rank}:\n{text}"
            for rank, text in enumerate(failures)
            if text is not None
        )
    return report


@pytest.fixture(scope="session")
def lockstep(pytestconfig: pytest.Config) -> Lockstep:
    """Returns what keeps the ranks together."""
    return pytestconfig.stash[_LOCKSTEP]


@pytest.fixture(scope="session")
def communicator(pytestconfig: pytest.Config) -> Communicator:
    """Returns the connection of this rank to the others, with Horovod started."""
    return pytestconfig.stash[_COMMUNICATOR]


@pytest.fixture(scope="session")
def new_folder(
    lockstep: Lockstep, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Returns `new_folder(name)`, which makes one folder for all ranks."""
    return lambda name: lockstep.from_rank_0(lambda: tmp_path_factory.mktemp(name))


@pytest.fixture
def tmp_path(new_folder: Callable[[str], Path]) -> Path:
    """Returns a folder of the test, the same on all ranks."""
    return new_folder("test")


@pytest.fixture(scope="session")
def records(lockstep: Lockstep, new_folder: Callable[[str], Path]) -> Path:
    """Returns the record set of tests/conftest.py, one for all ranks."""
    folder = new_folder("tiny")
    lockstep.from_rank_0(lambda: tiny_set.make(folder))
    return folder / "records"


@pytest.fixture(scope="session")
def run(lockstep: Lockstep) -> Callable[..., in_process.Done]:
    """Returns `run(program, *flags, of_rank_1=(), is_alone=False, code=0)`.

    It runs a program on all ranks, or on rank 0 as a job of one rank, and returns how
    it has ended, with that exit code. `of_rank_1` are further flags of that rank.
    """

    def run(
        program: ModuleType, *flags: str, of_rank_1: tuple[str, ...] = (), **kind: Any
    ) -> in_process.Done:
        arguments = [*flags, *(of_rank_1 if lockstep.rank == 1 else ())]
        return in_process.run(lockstep, program, arguments, **kind)

    return run
