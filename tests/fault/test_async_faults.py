"""Faults in asynchronous jobs: their workers come back, and a lost server ends them."""

import json
import os
import signal
import time

import pytest

from resnet.checkpoint.step_dirs import saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import failure_file
from tests.fault.conftest import STALL_SECONDS

pytestmark = pytest.mark.fault

ASYNC = ("--sync_mode=async", "--max_staleness=2")
RANKS = 4  # Rank 1 serves, ranks 2 and 3 work.


def signal_child(job, name: str, number: int) -> int:
    """Sends a signal to a TensorFlow server; returns its process."""
    pid = job.child_pid(name)
    job.faulted_at = time.monotonic()
    os.kill(pid, number)
    return pid


def test_a_killed_worker_comes_back_and_the_run_resumes(start, model_dir, outcome):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(7)
    killed = signal_child(job, "--job=worker\0--index=0", signal.SIGKILL)
    job.wait_until(lambda: "worker 0 was killed by signal 9" in job.output)
    job.wait_for_step(job.step + 20)
    assert job.child_pid("--job=worker\0--index=0") != killed
    job.kill(RANKS - 1, signal.SIGTERM)  # Not rank 0, which saves.
    code = job.end(30)
    outcome("kill -9 of a worker, then SIGTERM to a rank", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert job.leftovers() == []
    (last,) = saved_steps(model_dir)[-1:]
    resumed = start(*ASYNC, f"--stop_after_steps={last + 12}", num_ranks=RANKS - 1)
    assert resumed.end(60) == 0, resumed.output
    assert f"Current step {last}." in resumed.output
    assert saved_steps(model_dir)[-1] == last + 12
    lines = (model_dir / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    assert [line["step"] for line in lines] == list(range(1, last + 13))
    assert max(line["staleness_max"] for line in lines) <= 2
    assert resumed.leftovers() == []


@pytest.mark.slow
def test_a_stopped_worker_is_replaced(start, model_dir, outcome):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(7)
    stopped = signal_child(job, "--job=worker\0--index=1", signal.SIGSTOP)
    job.wait_until(lambda: "worker 1 has been silent" in job.output)
    job.wait_for_step(job.step + 20)
    assert job.child_pid("--job=worker\0--index=1") != stopped
    job.signal_mpirun(signal.SIGTERM)
    code = job.end(30)
    outcome("SIGSTOP of a worker, then SIGTERM", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert job.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_server_ends_the_job_which_resumes(start, model_dir, outcome, number):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(12)
    signal_child(job, "--job=ps\0", number)
    code = job.end(STALL_SECONDS + 15)
    outcome(f"{number.name} of a parameter server", job, code)
    assert code not in (0, REQUEUE_EXIT_CODE)
    assert "error: parameter server 0" in job.output
    assert "parameter server 0" in failure_file.read(model_dir)["reason"]
    assert job.leftovers(hydra_is_cut_off=True) == []
    last = saved_steps(model_dir)[-1]
    resumed = start(*ASYNC, f"--stop_after_steps={last + 5}", num_ranks=RANKS)
    assert resumed.end(60) == 0, resumed.output
    assert f"Current step {last}." in resumed.output


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_lost_rank_ends_the_job(start, model_dir, outcome, rank):
    job = start(*ASYNC, num_ranks=RANKS)
    job.wait_for_step(7)
    job.kill(rank)
    code = job.end(STALL_SECONDS + 15)
    outcome(f"kill -9 of rank {rank} of an asynchronous job", job, code)
    assert code not in (0, REQUEUE_EXIT_CODE)
    assert f"error: rank {rank} on" in job.output
    assert job.leftovers(hydra_is_cut_off=True) == []
