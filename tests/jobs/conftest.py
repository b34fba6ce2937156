"""Jobs of several ranks on this machine."""

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import shared_memory
from tests.converter_program import bad, raw, start  # noqa: F401 - Fixtures.
from tests.temporary_files import temporary_files  # noqa: F401 - A fixture.

REPOSITORY = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).with_name("mpirun")
TIMEOUT_SECONDS = 200

# Half a minute of processor time each: at the end they would run alone.
_LONGEST = {
    *("test_async_job", "test_async_updates", "test_main_job", "test_readme"),
    *("test_resume", "test_watchdog"),
}

Job = Callable[..., subprocess.CompletedProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, which two workers of xdist take in this order."""
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


@pytest.fixture(scope="session")
def run_ranks() -> Iterator[Job]:
    """Returns `run(num_ranks, program, *arguments)`; one rank runs without mpirun.

    Behind ":" in the arguments, as mpirun has it, is what further ranks run. What ranks
    that are killed leave in shared memory is removed in the end.
    """
    earlier = shared_memory.all_names()

    def run(
        num_ranks: int,
        program: str | Path,
        *arguments: str,
        cwd: Path = REPOSITORY,
        environment: Mapping[str, str] = types.MappingProxyType({}),
    ) -> subprocess.CompletedProcess:
        is_alone = num_ranks == 1 and ":" not in arguments
        launcher = [] if is_alone else [str(MPIRUN), "-np", str(num_ranks)]
        python = [sys.executable, str(REPOSITORY / program)]
        return subprocess.run(
            [*launcher, *python, *arguments],
            cwd=cwd,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "HWLOC_XMLFILE": "/nonexistent",  # So that Hydra leaves no file.
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    yield run
    shared_memory.remove_unused(shared_memory.all_names("mpich_shm_") - earlier)
