"""Ranks whose mpirun dies, as of a closed terminal, save and end."""

import signal
import time
from pathlib import Path

import pytest

from resnet.checkpoint import tensors
from resnet.checkpoint.step_dirs import saved_steps
from tests.fault.job import SUPERVISE, Job

pytestmark = pytest.mark.fault

GRACE_SECONDS = 30.0  # What Slurm gives by default between SIGTERM and SIGKILL.
EVERY = "--checkpoint_every=1000steps"
SUPERVISOR = (*SUPERVISE, "--")


def wait_for_step(job: Job, model_dir: Path, step: int) -> None:
    """Waits until so many steps are done; in a terminal, lines overwrite each other."""
    log = model_dir / "metrics.jsonl"
    job.wait_until(lambda: log.exists() and log.read_text().count("\n") >= step)


def assert_saved_after(step: int, model_dir: Path, job: Job) -> None:
    """Checks that the ranks have saved, once, and ended."""
    # A proxy that has lost mpirun leaves its file.
    assert job.leftovers(GRACE_SECONDS, hydra_is_cut_off=True) == []
    (saved,) = saved_steps(model_dir)
    assert saved >= step
    assert tensors.load(model_dir, saved).step == saved  # Checksums and all.


def test_a_closed_terminal_stops_the_ranks_as_sigterm_does(start, model_dir, outcome):
    job = start(EVERY, in_terminal=True)
    wait_for_step(job, model_dir, 5)
    job.close_terminal()
    code = job.end(GRACE_SECONDS)
    outcome("mpirun's terminal is closed", job, code)
    assert code == -signal.SIGHUP
    assert_saved_after(5, model_dir, job)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_an_mpirun_that_is_killed_is_named_and_its_ranks_save(
    start, model_dir, outcome, number
):
    job = start(EVERY)
    job.wait_for_step(5)
    job.signal_mpirun(number)
    code = job.end(GRACE_SECONDS)
    outcome(f"{number.name} to mpirun", job, code)
    assert code == -number
    assert_saved_after(5, model_dir, job)


@pytest.mark.slow
def test_a_second_interrupt_ends_the_ranks_at_once(start, model_dir, outcome):
    job = start(EVERY)
    job.wait_for_step(5)
    job.signal_mpirun(signal.SIGINT)
    time.sleep(0.01)
    job.signal_mpirun(signal.SIGINT)
    code = job.end(GRACE_SECONDS)
    outcome("SIGINT to mpirun, twice", job, code)
    assert code in (0, 255)  # Hydra's: 0 if its proxies end before they tell it why.
    assert "saved" not in job.output
    assert job.leftovers(5.0, hydra_is_cut_off=True) == []


@pytest.mark.slow
def test_a_closed_terminal_of_the_supervisor_stops_its_job(start, model_dir, outcome):
    job = start(EVERY, supervisor=SUPERVISOR, in_terminal=True)
    wait_for_step(job, model_dir, 5)
    job.close_terminal()
    code = job.end(GRACE_SECONDS)
    outcome("the supervisor's terminal is closed", job, code)
    assert code != 0
    assert_saved_after(5, model_dir, job)
