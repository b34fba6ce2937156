"""The hosts of a job: their names, and what they answer to the planner.

The planner asks a host by running itself there, which the job's launcher starts.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launch.dialects import DIALECTS, Dialect
from launch.stop_requests import StopRequests
from resnet.base.errors import UserError

SECONDS = 60.0  # Timeout of a host; ssh's own timeout is minutes.
_MOST_AT_ONCE = 32
_PLANNER = Path(__file__).with_name("plan.py")


def read_file(path: str) -> list[str]:
    """Returns the hosts in a file, the first word of each line.

    Raises:
        UserError: If the file can't be read.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise UserError(
            f"the host file of mpirun can't be read; {path}: {error.strerror}."
        ) from error
    stripped = (line.partition("#")[0].strip() for line in lines)
    return [line.split()[0] for line in stripped if line]


def of_job(num_nodes: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the hosts of the scheduler's job; none if it is this machine.

    Raises:
        UserError: If they are not known, or not as many as nodes.
    """
    hosts = _of_scheduler(environ)
    if not hosts and num_nodes == 1:
        return []
    if len(hosts) != num_nodes:
        raise UserError(
            f"to check {num_nodes} node(s), their names must be known; the scheduler's"
            f" job has {len(hosts) or 'none'}. Name them with --hosts=FILE, or call"
            " this inside an allocation of that size."
        )
    return hosts


def _of_scheduler(environ: Mapping[str, str]) -> list[str]:
    """Returns the hosts of the job in which this program runs; none outside a job."""
    if nodes := environ.get("SLURM_JOB_NODELIST"):
        words = ["scontrol", "show", "hostnames", nodes]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"the hosts of this job, {nodes}, must be listed by `scontrol show"
                f" hostnames`, which failed: {error}"
            ) from error
        return done.stdout.split()
    for dialect in DIALECTS.values():
        if path := environ.get(dialect.hosts_variable):
            # The first line of LSF's is the host of the batch file, if it has no rank.
            return list(dict.fromkeys(read_file(path)))
    return []


def ask(
    hosts: Sequence[str],
    dialect: Dialect,
    arguments: Sequence[str],
    requests: StopRequests,
) -> tuple[dict[str, str], dict[str, str]]:
    """Runs the planner on all hosts at the same time.

    Returns:
        What each host that has answered has printed, and for each other one a sentence
        about it.

    Raises:
        UserError: If there is no such launcher.
    """
    answers, failures = {}, {}
    with ThreadPoolExecutor(max_workers=min(len(hosts), _MOST_AT_ONCE)) as threads:
        results = threads.map(
            lambda host: _ask_host(host, dialect, arguments, requests), hosts
        )
        for host, (answer, failure) in zip(hosts, results, strict=True):
            if failure:
                failures[host] = failure
            else:
                answers[host] = answer
    return answers, failures


def _ask_host(
    host: str, dialect: Dialect, arguments: Sequence[str], requests: StopRequests
) -> tuple[str, str]:
    """Returns what a host has printed, or why it hasn't answered."""
    program = [sys.executable, str(_PLANNER), *arguments]
    words = dialect.on_host(host, program)
    if requests.seen:  # Before its turn has come.
        return "", f"{host} was not asked, since this program was stopped."
    try:
        done = requests.run_captured(words, SECONDS, dialect.unset_on_host)
    except UserError as error:
        reason = getattr(error.__cause__, "strerror", error)
        raise UserError(
            f"{dialect.title} needs the program {words[0]}, which can't be run:"
            f" {reason}. Load its module, or choose another --launcher."
        ) from error
    if done.timed_out:
        return "", (
            f"{host} must answer within {SECONDS:.0f} s; it hasn't. Leave it out of"
            " the hosts, or repair it."
        )
    if done.exit_code:
        launcher = shlex.join(words[: -len(program)])
        return "", (
            f"{host} can't be probed by `{launcher} ...`, which ended with exit code"
            f" {done.exit_code}: {done.reason}"
        )
    return done.stdout, ""
