"""Faults of the watchdogs and of the launcher, and output that nobody reads."""

import os
import re
import signal

import pytest

from resnet.watchdog import history, proc
from tests.fault.conftest import STALL_SECONDS
from tests.fault.job import Job

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def processes_left(job: Job) -> list[str]:
    return [one for one in job.leftovers() if one.startswith("process")]


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_watchdog_that_is_killed_or_stopped_ends_the_job(
    start, outcome, rank, number
):
    job = start()
    job.wait_for_step(5)
    watchdog = job.watchdog_pid(rank)
    job.kill(rank, 0)  # The clock begins.
    os.kill(watchdog, number)
    code = job.end(6 * STALL_SECONDS)
    outcome(f"{number.name} to the watchdog of rank {rank}", job, code)
    assert code != 0
    assert re.search(rf"rank {rank} on|watchdog of rank {rank}", job.output)
    assert "watchdog" in job.output.lower()
    # The temporary files are removed by the watchdog that was killed.
    assert processes_left(job) == []


def test_a_launchers_process_that_is_killed_is_named_and_no_rank_stays(
    start, outcome, model_dir
):
    job = start()
    job.wait_for_step(5)
    proxy = proc.parent_of(proc.parent_of(job.pid(0)))
    job.kill(0, 0)  # The clock begins.
    os.kill(proxy, signal.SIGKILL)
    code = job.end(12 * STALL_SECONDS)
    outcome("SIGKILL to Hydra's proxy of rank 0", job, code)
    assert code != 0
    assert processes_left(job) == []
    reason = history.read_failure(model_dir)["reason"]
    assert re.search(rf"the launcher's process {proxy} on", reason)
