"""Starts benchmarks as processes of their own, and reads what they print."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import UserError

_PROGRAM = Path(__file__).parents[1] / "benchmark.py"
# Open MPI, version 4 and 5, would bind a rank to one core, and refuse more ranks than
# it sees cores. Other MPIs read none of these.
_OPEN_MPI = {
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def run_benchmark(arguments: Sequence[str], num_ranks: int = 0) -> dict[str, Any]:
    """Runs this project's benchmark and returns its JSON object.

    Args:
        arguments: Its flags, but for --json.
        num_ranks: How many ranks mpirun starts; 0 starts one process without it.

    Raises:
        UserError: If it fails.
    """
    command = [sys.executable, str(_PROGRAM), *arguments, "--json"]
    if num_ranks:
        command = [find_mpirun(), "-np", str(num_ranks), *command]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**_OPEN_MPI, **os.environ},
    )
    return _results(done, "this benchmark")[-1]


def run_peer(command: str) -> list[dict[str, Any]]:
    """Runs a command in a shell and returns the JSON objects among its lines.

    Raises:
        UserError: If it fails, or prints none that has `images_per_second`.
    """
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False
    )
    return _results(done, f"the command {command!r}")


def find_mpirun() -> str:
    """Returns the path of mpirun: the one of this Python's environment, or on PATH.

    Raises:
        UserError: If there is none.
    """
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise UserError("mpirun was not found on PATH. make venv installs one.")
    return found


def images_per_second(results: Sequence[dict[str, Any]]) -> float:
    """Returns the sum of what several processes report."""
    return sum(map(_rate, results))


def _rate(result: dict[str, Any]) -> float:
    """Returns `images_per_second`, or the "median" that is in it; 0 if neither is."""
    rate = result.get("images_per_second")
    if isinstance(rate, dict):
        rate = rate.get("median")
    return float(rate) if isinstance(rate, (int, float)) else 0.0


def _results(done: subprocess.CompletedProcess[str], what: str) -> list[dict[str, Any]]:
    """Returns the JSON objects with a rate that a process printed, each on its line."""
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing on standard error"]
        raise UserError(
            f"{what} must end with exit code 0; it ended with {done.returncode}:"
            f" {said[-1]}"
        )
    found = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if _rate(result) > 0:
                found.append(result)
    if not found:
        raise UserError(
            f"{what} must print a line of JSON whose images_per_second is a number or"
            " has a median; it printed none."
        )
    return found
