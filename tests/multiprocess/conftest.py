"""Jobs of several ranks on this machine."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).with_name("mpirun")
TIMEOUT_SECONDS = 200

Job = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def run_ranks() -> Job:
    """Returns `run(num_ranks, program, *arguments)`; one rank runs without mpirun."""

    def run(
        num_ranks: int, program: str | Path, *arguments: str, cwd: Path = REPOSITORY
    ) -> subprocess.CompletedProcess:
        launcher = [str(MPIRUN), "-np", str(num_ranks)] if num_ranks > 1 else []
        python = [sys.executable, str(REPOSITORY / program)]
        return subprocess.run(
            [*launcher, *python, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    return run
