"""The supervisor starts a failed job again, and knows when not to."""

import signal

import pytest

from resnet.checkpoint.step_dirs import saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.fault.job import SUPERVISE

pytestmark = [pytest.mark.fault, pytest.mark.slow]


@pytest.fixture
def supervise(start):
    def start_it(*flags: str, max_restarts: int = 2, **facts):
        own = ("--restart_seconds=0.1", f"--max_restarts={max_restarts}", "--")
        supervisor = [*SUPERVISE, *own]
        return start(*flags, supervisor=supervisor, **facts)

    return start_it


def test_a_job_that_fails_is_started_again_from_its_checkpoint(
    supervise, hosts, model_dir, outcome
):
    job = supervise("--train_steps=40")
    job.wait_for_step(12)
    job.kill(1)
    code = job.end(200)
    outcome("supervisor: kill -9 of rank 1, restart to the end", job, code)
    assert code == 0, job.output
    assert job.output.count("restart 1 of 2") == 1
    assert saved_steps(model_dir)[-1] == 40
    assert job.leftovers(hydra_is_cut_off=hosts is not None) == []


def test_a_failure_at_the_same_step_ends_it(supervise, outcome):
    # The fault comes at the 7th batch of a start, the checkpoint is never reached.
    job = supervise(
        "--checkpoint_every=1000steps", fault=("bug", "1", "7"), max_restarts=9
    )
    code = job.end(300)
    outcome("supervisor: fails twice at the same step", job, code)
    assert code == 1
    assert job.output.count("the training has failed at step 7") == 2
    assert "is not restarted" in job.output


def test_restarts_are_used_up(supervise, outcome):
    job = supervise(fault=("bug", "1", "7"), max_restarts=1)
    code = job.end(300)
    outcome("supervisor: restarts used up", job, code)
    assert code == 1
    assert "the limit of 1 restarts is reached" in job.output


def test_a_silent_end_with_zero_is_a_failure(supervise, outcome):
    job = supervise(fault=("exit", "1", "7"), max_restarts=0)
    code = job.end(150)
    outcome("supervisor: a rank exits with 0", job, code)
    assert code != 0


def test_a_users_mistake_and_a_preemption_are_not_started_again(supervise, outcome):
    job = supervise("--weight_decay=-1")
    assert job.end(100) == 2
    job = supervise()
    job.wait_for_step(3)
    job.signal_mpirun(signal.SIGTERM)
    code = job.end(60)
    outcome("supervisor: SIGTERM", job, code)
    assert code == REQUEUE_EXIT_CODE
    assert "supervise:" not in job.output
