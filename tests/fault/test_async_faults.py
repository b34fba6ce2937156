"""Faults in asynchronous jobs: their workers come back, and a lost server ends them."""

import json
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from resnet.checkpoint.step_dirs import saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.training.parameter_servers.serving import MOST_RESTARTS
from resnet.watchdog import history
from tests.fault.conftest import FLAGS, STALL_SECONDS
from tests.fault.impatient_main import LIMIT_SECONDS
from tests.fault.job import MPIRUN, REPOSITORY, Job
from tests.processes import write_program

pytestmark = pytest.mark.fault

ASYNC = ("--sync_mode=async", "--max_staleness=2")
RANKS = 4  # Rank 1 serves, ranks 2 and 3 work.


@pytest.mark.slow
def test_a_worker_that_always_dies_ends_the_job_and_each_restart_is_told(
    start, model_dir, outcome
):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(7)
    for number in range(1, MOST_RESTARTS + 1):
        job.signal_child("worker", 0, signal.SIGKILL)
        told = f"worker 0 was killed by signal 9; it is restarted (restart {number})"
        job.wait_until(lambda told=told: told in job.output)
    job.signal_child("worker", 0, signal.SIGKILL)
    code = job.end(30)
    outcome("kill -9 of a worker, again and again", job, code)
    assert code not in (0, REQUEUE_EXIT_CODE)
    reason = history.read_failure(model_dir)["reason"]
    assert "worker 0 was killed by signal 9, after the limit of 5 restarts" in reason


@pytest.mark.slow
def test_a_run_outlasts_the_limit_of_the_watchdogs(records, model_dir, mpirun, outcome):
    flags = [*FLAGS, *ASYNC, f"--data_dir={records}", f"--model_dir={model_dir}"]
    flags += ["--eval_every=30steps", "--mode=train_and_eval"]
    with Job(mpirun(RANKS), RANKS, flags, "tests/fault/impatient_main.py") as job:
        job.wait_for_step(7)
        time.sleep(1.5 * LIMIT_SECONDS)
        assert job.process.poll() is None, job.output
        job.signal_mpirun(signal.SIGTERM)
        code = job.end(30)
        outcome("an asynchronous run longer than the watchdogs' limit", job, code)
        assert code == REQUEUE_EXIT_CODE, job.output


@pytest.mark.slow
def test_a_stopped_worker_is_replaced(start, model_dir, outcome):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(7)
    stopped = job.signal_child("worker", 1, signal.SIGSTOP)
    job.wait_until(lambda: "worker 1 has been silent" in job.output)
    job.wait_for_step(job.step + 20)
    assert job.child_pid("worker", 1) != stopped
    job.signal_mpirun(signal.SIGTERM)
    code = job.end(30)
    outcome("SIGSTOP of a worker, then SIGTERM", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    lines = (model_dir / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line)["staleness_max"] for line in lines) <= 2
    assert job.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_server_ends_the_job_which_resumes(start, model_dir, outcome, number):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(12)
    job.signal_child("ps", 0, number)
    code = job.end(STALL_SECONDS + 15)
    outcome(f"{number.name} of a parameter server", job, code)
    assert code not in (0, REQUEUE_EXIT_CODE)
    assert "error: parameter server 0" in job.output
    assert "parameter server 0" in history.read_failure(model_dir)["reason"]
    assert job.leftovers(hydra_is_cut_off=True) == []
    last = saved_steps(model_dir)[-1]
    resumed = start(*ASYNC, f"--stop_after_steps={last + 5}", num_ranks=RANKS)
    assert resumed.end(60) == 0, resumed.output
    assert f"Current step {last}." in resumed.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "number"), [(0, signal.SIGKILL), (1, signal.SIGSTOP), (2, signal.SIGKILL)]
)
def test_a_lost_rank_ends_the_job(start, model_dir, outcome, rank, number):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(7)
    job.kill(rank, number)
    code = job.end(STALL_SECONDS + 15)
    outcome(f"{number.name} of rank {rank} of an asynchronous job", job, code)
    assert code not in (0, REQUEUE_EXIT_CODE)
    assert f"error: rank {rank} on" in job.output
    assert job.leftovers(hydra_is_cut_off=True) == []


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_the_ranks_go_round_the_hosts_of_a_file(
    hosts, records, model_dir, tmp_path, monkeypatch, outcome
):
    """Ranks 0 and 2 (coordinator, worker 0) are on one host, 1 and 3 on the other."""
    wrapper = tmp_path / "mpirun"  # With the options that reach simulated hosts.
    options = shlex.join(hosts.launcher_options())
    write_program(wrapper, f'#!/bin/sh\nexec {MPIRUN} {options} "$@"\n')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "hosts"
    file.write_text("\n".join(hosts.names))
    launcher = [sys.executable, str(REPOSITORY / "launch" / "parameter_server_job.py")]
    launcher += ["-n", "2", "-s", "1", "-H", str(file), "--"]
    flags = [*FLAGS, *ASYNC, f"--data_dir={records}", f"--model_dir={model_dir}"]
    with Job(launcher, RANKS, flags) as job:
        job.wait_for_step(7)
        for host, process in (
            (0, job.pid(0)),
            (1, job.child_pid("ps", 0)),
            (0, job.child_pid("worker", 0)),
            (1, job.child_pid("worker", 1)),
        ):
            namespace = Path("/run/netns", hosts.names[host])
            assert Path(f"/proc/{process}/ns/net").samefile(namespace)
        job.signal_mpirun(signal.SIGTERM)
        code = job.end(30)
        outcome("SIGTERM to a job that a file of hosts describes", job, code)
        assert code == REQUEUE_EXIT_CODE, job.output
        assert job.leftovers() == []
    hosts.pull_cable(hosts.names[1])
    with Job(launcher, RANKS, flags) as job:
        code = job.end(60)
        outcome("a host of the file that can't be reached", job, code)
        assert code == 2
        assert f"all hosts must be reachable; {hosts.names[1]} can't" in job.output
        assert job.leftovers() == []
