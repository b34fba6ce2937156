"""The jobs that measuring programs start: their commands, rates and spreads."""

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resnet.base import json_file
from resnet.base.errors import UserError

BENCHMARK = Path(__file__).parents[1] / "benchmark.py"
# By default, Open MPI 4 and 5 bind a rank to one core, and refuse more ranks than
# cores. Other MPIs ignore these variables.
OPEN_MPI = {
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def spread(values: Sequence[float], form: str = ".3f", unit: str = "") -> str:
    """Returns the median, the range and the number of values as text."""
    shown = (statistics.median(values), min(values), max(values))
    median, least, most = (format(value, form) for value in shown)
    return f"{median}{unit} ({least} to {most}, n={len(values)})"


def command(program: Path, arguments: Sequence[str], num_ranks: int) -> list[str]:
    """Returns the command of a program; 0 ranks are a process without mpirun."""
    words = [sys.executable, str(program), *arguments]
    if not num_ranks:
        return words
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise UserError("mpirun was not found on PATH. make venv installs it.")
    return [mpirun, "-np", str(num_ranks), *words]


def run_benchmark(arguments: Sequence[str], num_ranks: int = 0) -> dict[str, Any]:
    """Runs this project's benchmark, and returns its JSON object."""
    completed = subprocess.run(
        command(BENCHMARK, [*arguments, "--json"], num_ranks),
        capture_output=True,
        text=True,
        check=False,
        env={**OPEN_MPI, **os.environ},
    )
    return _results(completed, "this benchmark")[-1]


def run_peer(shell_command: str) -> float:
    """Runs another benchmark; returns the sum of the rates in its lines of JSON."""
    completed = subprocess.run(
        shell_command, shell=True, capture_output=True, text=True, check=False
    )
    return sum(map(_rate, _results(completed, f"the command {shell_command!r}")))


def _rate(result: dict[str, Any]) -> float:
    """Returns the number `images_per_second`, or its "median"; 0 without either."""
    rate = result.get("images_per_second")
    if isinstance(rate, dict):
        rate = rate.get("median")
    return float(rate) if isinstance(rate, (int, float)) else 0.0


def _results(
    completed: subprocess.CompletedProcess[str], name: str
) -> list[dict[str, Any]]:
    """Returns the JSON objects with a rate from the lines of standard output."""
    if code := completed.returncode:
        lines = completed.stderr.strip().splitlines() or ["standard error is empty"]
        raise UserError(f"{name} failed with exit code {code}: {lines[-1]}")
    lines = completed.stdout.splitlines()
    results, _ = json_file.parse_lines(lines, lambda result: _rate(result) > 0)
    if not results:
        raise UserError(
            f"{name} printed no line of JSON with images_per_second; print it as a"
            " positive number or as an object with a median."
        )
    return results
