"""Two hosts, one of which is cut off. Needs root, for network namespaces."""

import re
import signal
import time

import pytest

from resnet.checkpoint.step_dirs import saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.fault.conftest import STALL_SECONDS
from tests.fault.job import SUPERVISE

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.parametrize("hosts", [2], indirect=True),
]


def test_a_cable_that_is_pulled_for_five_seconds_costs_only_time(start, hosts, outcome):
    job = start("--stall_seconds=60")
    job.wait_for_step(5)
    hosts.pull_cable("rf1")
    time.sleep(5)
    hosts.plug_cable("rf1")
    step = job.step
    job.wait_for_step(step + 5)
    job.signal_mpirun(signal.SIGTERM)
    code = job.end(60)
    outcome("link down for 5 s", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert job.leftovers() == []


def test_a_host_that_is_cut_off_ends_the_job_after_the_set_time(
    start, hosts, model_dir, outcome
):
    job = start()
    job.wait_for_step(5)
    hosts.pull_cable("rf1")
    job.faulted_at = time.monotonic()
    code = job.end(STALL_SECONDS + 15)
    outcome(f"link down for ever (stall_seconds {STALL_SECONDS})", job, code)
    assert code != 0
    assert re.search(r"error: rank 1 on \S+ has sent no heartbeat for", job.output)
    seconds = STALL_SECONDS + 15
    assert job.leftovers(seconds, hydra_is_cut_off=True) == []
    hosts.plug_cable("rf1")
    newest = max(saved_steps(model_dir), default=0)
    again = start()
    again.wait_for_step(newest + 1)


def test_the_supervisor_restarts_without_a_lost_host(start, hosts, model_dir, outcome):
    job = start(
        supervisor=(*SUPERVISE, *("--max_restarts=2", "--restart_seconds=0.1", "--"))
    )
    job.wait_for_step(6)
    hosts.pull_cable("rf1")
    job.faulted_at = time.monotonic()
    job.wait_until(lambda: "restart 1 of 2" in job.output)
    assert "unreachable hosts: rf1\nsupervise: remaining hosts: rf0\n" in job.output
    before = job.output.count("Training for")
    job.wait_until(lambda: job.output.count("Training for") > before)
    newest = max(saved_steps(model_dir), default=0)
    job.wait_for_step(newest + 10)
    job.ended_after = time.monotonic() - job.faulted_at
    outcome("supervisor: host lost, restart on the other", job, 0)
    job.signal_mpirun(signal.SIGTERM)
    assert job.end(60) == REQUEUE_EXIT_CODE, job.output
    assert job.leftovers(hydra_is_cut_off=True) == []
