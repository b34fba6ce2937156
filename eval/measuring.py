"""Runs benchmarks in subprocesses and parses the JSON that they print."""

import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from resnet.base.errors import UserError
from resnet.watchdog import parent_death

_PROGRAM = Path(__file__).with_name("benchmark.py")
# By default, Open MPI 4 and 5 bind a rank to one core, and refuse more ranks than
# cores. Other MPIs ignore these variables.
OPEN_MPI = {
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def run_benchmark(arguments: Sequence[str], num_ranks: int = 0) -> dict[str, Any]:
    """Runs this project's benchmark and returns its JSON object.

    Args:
        arguments: The flags of the benchmark, except --json.
        num_ranks: The number of ranks that mpirun starts; 0 for one process without
            mpirun.

    Raises:
        UserError: If the benchmark fails.
    """
    command = [sys.executable, str(_PROGRAM), *arguments, "--json"]
    if num_ranks:
        command = [find_mpirun(), "-np", str(num_ranks), *command]
    completed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**OPEN_MPI, **os.environ},
    )
    return _results(completed, "this benchmark")[-1]


def run_peer(command: str) -> list[dict[str, Any]]:
    """Runs a shell command and returns the JSON objects that it prints.

    Raises:
        UserError: If the command fails, or prints no object with `images_per_second`.
    """
    completed = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False
    )
    return _results(completed, f"the command {command!r}")


def start_job(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a training in a session of its own; returns its process.

    So only this program sends it signals: SIGTERM, upon which a training saves and
    stops, also if this program dies.

    Args:
        command: The command, with or without mpirun.
        output: The file for all that it prints.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**OPEN_MPI, **os.environ},
        start_new_session=True,
        preexec_fn=functools.partial(
            parent_death.send_signal, signal.SIGTERM, os.getpid()
        ),
    )


def split_flags(text: str, flag: str) -> list[str]:
    """Returns the words of a flag whose value is split as a shell would.

    Raises:
        UserError: If it has a quotation mark without its counterpart.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"--{flag} can't be split into words: {error}.") from error


def find_mpirun() -> str:
    """Returns the path of mpirun in this Python's environment, or else on PATH.

    Raises:
        UserError: If mpirun is in neither of them.
    """
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise UserError("mpirun was not found on PATH. make venv installs it.")
    return found


def images_per_second(results: Sequence[dict[str, Any]]) -> float:
    """Returns the sum of the rates of several processes."""
    return sum(map(_rate, results))


def _rate(result: dict[str, Any]) -> float:
    """Returns the number `images_per_second`, or its "median"; 0 without either."""
    rate = result.get("images_per_second")
    if isinstance(rate, dict):
        rate = rate.get("median")
    return float(rate) if isinstance(rate, (int, float)) else 0.0


def _results(
    completed: subprocess.CompletedProcess[str], name: str
) -> list[dict[str, Any]]:
    """Returns the JSON objects with a rate from the lines of standard output.

    Args:
        completed: The process of a benchmark.
        name: The benchmark's name, for messages.

    Raises:
        UserError: If the process failed, or printed no such object.
    """
    if code := completed.returncode:
        lines = completed.stderr.strip().splitlines() or ["standard error is empty"]
        raise UserError(f"{name} failed with exit code {code}: {lines[-1]}")
    results = []
    for line in completed.stdout.splitlines():
        if line.startswith("{"):
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if _rate(result) > 0:
                results.append(result)
    if not results:
        raise UserError(
            f"{name} printed no line of JSON with images_per_second; print it as a"
            " positive number or as an object with a median."
        )
    return results
