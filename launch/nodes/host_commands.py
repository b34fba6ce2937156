"""Runs `launch/plan.py --probe` on the hosts of a job, which the launcher reaches."""

import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launch.dialects.job_shape import Dialect
from launch.stop_requests import StopRequests
from resnet.base.errors import UserError

SECONDS = 60.0  # Timeout of a host; ssh's own timeout is minutes.
_MOST_AT_ONCE = 32
_PROGRAM = Path(__file__).parents[1] / "plan.py"


def run_on_hosts(
    hosts: Sequence[str],
    dialect: Dialect,
    arguments: Sequence[str],
    requests: StopRequests,
) -> tuple[dict[str, str], dict[str, str]]:
    """Asks all hosts at the same time.

    Args:
        hosts: Their names.
        dialect: The launcher that reaches them.
        arguments: The arguments of `launch/plan.py`.
        requests: The signals that ask to stop.

    Returns:
        What each host that has answered has printed, and for each other one a sentence
        about it.

    Raises:
        UserError: If there is no such launcher.
    """
    answers, failures = {}, {}
    with ThreadPoolExecutor(max_workers=min(len(hosts), _MOST_AT_ONCE)) as threads:
        results = threads.map(
            lambda host: _ask_one(host, dialect, arguments, requests), hosts
        )
        for host, (answer, failure) in zip(hosts, results, strict=True):
            if failure:
                failures[host] = failure
            else:
                answers[host] = answer
    return answers, failures


def _ask_one(
    host: str, dialect: Dialect, arguments: Sequence[str], requests: StopRequests
) -> tuple[str, str]:
    """Returns what a host has printed, or why it hasn't answered."""
    program = [sys.executable, str(_PROGRAM), *arguments]
    words = dialect.on_host(host, program)
    if requests.seen:  # Before its turn has come.
        return "", f"{host} was not asked, since this program was stopped."
    try:
        done = requests.run_captured(words, SECONDS, dialect.UNSET_ON_HOST)
    except UserError as error:
        reason = getattr(error.__cause__, "strerror", error)
        raise UserError(
            f"{dialect.TITLE} needs the program {words[0]}, which can't be run:"
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
