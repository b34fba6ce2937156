"""The planner checks and runs a job, and leaves nothing running anywhere."""

import os
import platform
import re
import signal

import pytest

from resnet.checkpoint.step_dirs import saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.fault.conftest import FLAGS
from tests.fault.job import MPIRUN, Job

pytestmark = pytest.mark.fault

STEP = re.compile(r"^\[0 \S+\] step (\d+)/", re.M)
# Hydra's labels are characters that a terminal doesn't show.
UNREADABLE = re.compile(r"[\x1e\x1f]")
MEASURING = b"launched_ranks.py"
CHECK_SECONDS = 90.0  # Ranks that can't reach each other end by themselves.


@pytest.fixture
def run_plan(records, model_dir, hosts, tmp_path, monkeypatch):
    """Returns `run_plan(*flags)`, which starts the planner with two ranks."""
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    where = ["--ranks_per_node=2"]
    if hosts is not None:
        file = tmp_path / "hosts"
        file.write_text("".join(f"{name}\n" for name in hosts.names))
        where = [f"--hosts={file}", "--ranks_per_node=1"]
        for name, value in hosts.environment().items():
            monkeypatch.setenv(name, value)
    started: list[Job] = []

    def start(*flags: str) -> Job:
        arguments = ["--probe", *where, *FLAGS, f"--data_dir={records}"]
        arguments += [f"--model_dir={model_dir}", *flags]
        started.append(Job([], 2, arguments, "launch/plan.py"))
        return started[-1]

    yield start
    for job in started:
        job.__exit__()


def step(job: Job) -> int:
    return max([0, *map(int, STEP.findall(job.output))])


def wait_for_step(job: Job, number: int) -> None:
    job.wait_until(lambda: step(job) >= number)


def wait_for_measurement(job: Job) -> list[int]:
    """Waits until both ranks of the check run; returns their processes."""
    found: list[int] = []

    def are_there() -> bool:
        found[:] = job._processes(
            lambda facts: MEASURING in facts and b"PMI_RANK=" in facts
        )
        return len(found) == 2

    job.wait_until(are_there)
    return found


def test_an_interrupted_run_saves_and_leaves_nothing(
    run_plan, hosts, model_dir, outcome
):
    # A rank whose Python ends slowly on a busy machine is no fault here.
    job = run_plan("--run", "--checkpoint_every=1000steps", "--stall_seconds=60")
    wait_for_step(job, 5)
    job.signal_mpirun(signal.SIGINT)
    code = job.end(60)
    outcome("plan.py --run: Ctrl-C", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert job.leftovers(hydra_is_cut_off=hosts is not None) == []
    assert saved_steps(model_dir)[-1] >= 5
    assert not UNREADABLE.search(job.output)
    host = "rf0" if hosts else platform.node()
    steps = [line for line in job.output.splitlines() if "step 5/" in line]
    assert all(line.startswith(f"[0 {host}] step 5/") for line in steps), job.output
    assert steps


def test_an_interrupted_check_leaves_nothing(run_plan, hosts):
    job = run_plan("--check")
    # Else the ranks could come to their end before the signal reaches them.
    os.kill(wait_for_measurement(job)[0], signal.SIGSTOP)
    watchdogs = job._processes(lambda facts: b"resnet.watchdog.monitor" in facts)
    job.signal_mpirun(signal.SIGINT)
    code = job.end(15)  # The watchdog would end the ranks after 20 s.
    assert code == REQUEUE_EXIT_CODE, job.output
    assert job.output.endswith("stopped before the end of the check\n")
    left = job.leftovers(hydra_is_cut_off=True)
    if len(watchdogs) < 2:  # They remove the MPI library's file in shared memory.
        left = [one for one in left if not one.startswith("mpich_shm_")]
    assert left == []


@pytest.mark.slow
def test_a_killed_planner_leaves_nothing(run_plan, hosts):
    job = run_plan("--run")
    wait_for_step(job, 3)
    job.signal_mpirun(signal.SIGKILL)
    job.end(20)
    # Nobody reads what mpirun prints any more, so it dies of that, and the ranks save.
    assert job.leftovers(60, hydra_is_cut_off=True) == []


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_lost_host_leaves_nothing_and_the_run_goes_on_without_it(
    run_plan, hosts, outcome
):
    job = run_plan("--run")
    wait_for_step(job, 6)
    hosts.pull_cable("rf1")
    job.wait_until(lambda: "remaining hosts: rf0" in job.output)
    before = job.output.count("Training for")
    job.wait_until(lambda: job.output.count("Training for") > before)
    resumed = step(job)
    wait_for_step(job, resumed + 5)
    job.signal_mpirun(signal.SIGINT)
    code = job.end(60)
    outcome("plan.py --run: host lost, then Ctrl-C", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert job.leftovers(hydra_is_cut_off=True) == []


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_host_that_is_lost_in_the_check_leaves_nothing(run_plan, hosts):
    job = run_plan("--run")
    wait_for_measurement(job)
    job.signal_mpirun(0)  # The clock begins.
    hosts.pull_cable("rf1")
    assert job.end(CHECK_SECONDS) == 2, job.output
    # Ranks that have no watchdog yet leave the MPI library's file in shared memory.
    left = job.leftovers(20, hydra_is_cut_off=True)
    assert [one for one in left if one.startswith("process")] == []
