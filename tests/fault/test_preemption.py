"""A preempted job saves once and exits with the code that asks for a requeue."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from resnet.checkpoint import tensors
from resnet.checkpoint.step_dirs import saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.fault.conftest import LARGE_CHECKPOINTS
from tests.main_run import read_metrics
from tests.processes import completed

pytestmark = pytest.mark.fault

# Of mpirun, if a signal comes when the proxy of a host has ended.
HYDRAS_ERROR = "unable to send signal downstream"

GRACE_SECONDS = 30.0  # What Slurm gives by default between SIGTERM and SIGKILL.
EVERY = "--checkpoint_every=1000steps"


@pytest.mark.parametrize(
    ("number", "target", "times"),
    [
        (signal.SIGTERM, "mpirun", 2),
        *(
            pytest.param(number, target, times, marks=pytest.mark.slow)
            for number, target, times in [
                (signal.SIGUSR1, "mpirun", 1),
                (signal.SIGTERM, 0, 1),
                (signal.SIGUSR1, 1, 2),
                (signal.SIGINT, 1, 1),
                (signal.SIGHUP, 1, 1),
            ]
        ),
    ],
)
def test_all_ranks_stop_after_the_same_step_which_is_saved(
    start, model_dir, outcome, number, target, times
):
    job = start(EVERY)
    job.wait_for_step(5)
    for _ in range(times):
        if target == "mpirun":
            job.signal_mpirun(number)
        else:
            job.kill(target, number)
        time.sleep(0.05)
    code = job.end(GRACE_SECONDS)
    name = f"{number.name} to {'rank ' * (target != 'mpirun')}{target}"
    outcome(f"{name}{', twice' * (times > 1)}", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    (step,) = saved_steps(model_dir)
    assert job.output.count(f"stopped after step {step}, which is saved") == 1
    assert "Traceback" not in job.output
    assert job.leftovers() == []
    assert tensors.load(model_dir, step).step == step  # Checksums and all.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "seconds"), [(signal.SIGUSR1, 0.02), (signal.SIGTERM, 0.2)]
)
def test_signals_up_to_the_end_do_not_change_the_exit_code(
    start, outcome, number, seconds
):
    job = start(EVERY)
    job.wait_for_step(5)
    deadline = time.monotonic() + GRACE_SECONDS
    while job.process.poll() is None and time.monotonic() < deadline:
        job.signal_mpirun(number)
        time.sleep(seconds)
    code = job.end(GRACE_SECONDS)
    outcome(f"{number.name} to mpirun every {seconds:g} s", job, code)
    if HYDRAS_ERROR in job.output:  # docs/faults.md
        assert job.output.count(", which is saved. Rerun the same command") == 1
        return
    assert code == REQUEUE_EXIT_CODE, job.output


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)]
)
def test_a_signal_while_the_ranks_connect_is_heeded(start, model_dir, outcome, number):
    job = start(EVERY)
    for rank in range(job.num_ranks):
        maps = Path(f"/proc/{job.pid(rank)}/maps")
        job.wait_until(lambda maps=maps: "/libmpi." in maps.read_text())
    job.signal_mpirun(number)
    code = job.end(60)
    outcome(f"{number.name} to mpirun while the ranks connect", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert "stopped before the training began" in job.output
    assert "Traceback" not in job.output
    assert saved_steps(model_dir) == []
    assert job.leftovers() == []


@pytest.mark.slow
def test_a_signal_before_the_first_step_is_heeded(start, model_dir, outcome):
    job = start(EVERY)
    job.wait_until(lambda: (model_dir / "lock").exists())
    job.signal_mpirun(signal.SIGTERM)
    code = job.end(60)
    outcome("SIGTERM to mpirun before the first step", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert "Traceback" not in job.output
    assert job.leftovers() == []


@pytest.mark.parametrize(
    ("number", "times"),
    [(signal.SIGTERM, 2), pytest.param(signal.SIGUSR1, 1, marks=pytest.mark.slow)],
)
def test_a_checkpoint_that_is_being_written_is_written_to_its_end(
    start, model_dir, outcome, number, times
):
    job = start(LARGE_CHECKPOINTS)
    folder = model_dir / "checkpoints"
    unfinished: list[Path] = []

    def is_being_written() -> list[Path]:
        unfinished[:] = folder.glob(".step-*.unfinished")
        return unfinished

    job.wait_until(is_being_written, 0.0005)
    for _ in range(times):
        job.signal_mpirun(number)
        time.sleep(0.01)
    code = job.end(GRACE_SECONDS)
    outcome(f"{number.name} during a save{', twice' * (times > 1)}", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    written = int(unfinished[0].name.split("-")[1].split(".")[0])
    assert written in saved_steps(model_dir)
    for step in saved_steps(model_dir):
        assert tensors.load(model_dir, step).step == step  # Checksums and all.
    assert not list(folder.glob(".*"))
    assert "Traceback" not in job.output
    assert job.leftovers() == []


@pytest.mark.slow  # make test has it in tests/unit/test_run_folder.py.
def test_a_second_job_in_the_same_folder_is_refused(start, outcome):
    first = start()
    first.wait_for_step(2)
    second = start(num_ranks=1)
    code = second.end(60)
    outcome("two jobs in one model_dir: the second", second, code)
    assert code == 2
    assert second.output.count("error:") == 1
    assert "is locked by another job (process" in second.output
    step = first.step
    first.wait_for_step(step + 2)


@pytest.mark.root
@pytest.mark.slow
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(start, model_dir, outcome):
    """Needs root: the disk is a small tmpfs."""
    model_dir.mkdir()
    mounted = completed(["mount", "-t", "tmpfs", "-o", "size=140m", "tmpfs", model_dir])
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr}")
    try:
        job = start(LARGE_CHECKPOINTS, "--keep_checkpoints=1")
        job.wait_until(lambda: saved_steps(model_dir))
        filler = model_dir / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            except OSError:
                pass
        saved = saved_steps(model_dir)
        job.wait_until(lambda: "No space left" in job.output)
        step = job.step
        job.wait_for_step(step + 10)  # The training continues.
        assert set(saved_steps(model_dir)) >= set(saved[-1:])
        filler.unlink()
        job.wait_until(lambda: max(saved_steps(model_dir), default=0) > step)
        job.signal_mpirun(signal.SIGTERM)
        code = job.end(GRACE_SECONDS)
        outcome("disk full, then not", job, code)
        assert code == REQUEUE_EXIT_CODE, job.output
        assert job.output.count("can't be written") >= 1
        lines = read_metrics(model_dir)
        assert len(lines) == saved_steps(model_dir)[-1]  # One for each step.
        shutil.rmtree(model_dir / "checkpoints")
    finally:
        job.__exit__()
        subprocess.run(["umount", "-l", model_dir], check=True)
