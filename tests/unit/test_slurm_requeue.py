"""The batch files of the published runs resume after their time limit."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / "launch" / "jobs"
SCRIPTS = sorted(LAUNCH.glob("train_*.slurm"))
# As Hydra does, it tells by its exit code how the ranks have ended. It sleeps in the
# foreground, after which the shell looks for signals: `wait` would miss one that comes
# just before it.
WAITING_MPIRUN = """
trap 'echo "USR1 came"; exit 75' USR1
trap 'echo "TERM came"; exit 75' TERM
echo up
while :; do sleep 0.1; done
"""


@pytest.fixture(params=SCRIPTS, ids=lambda path: path.name)
def start(tmp_path, request):
    """A function that starts the batch file with an mpirun and a scontrol of shell."""
    for folder in ("records", "out", "clone/.venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "clone/launch").symlink_to(LAUNCH.parent)
    started = []

    def start_it(mpirun: str, scontrol: str = 'echo "scontrol $*"') -> subprocess.Popen:
        programs = {"mpirun": mpirun, "scontrol": scontrol, "python": ""}
        for name, text in programs.items():
            path = tmp_path / "clone/.venv/bin" / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        environment = {
            "PATH": f"{tmp_path}/clone/.venv/bin:{os.defpath}",
            "SLURM_SUBMIT_DIR": str(tmp_path / "clone"),
            "SLURM_JOB_ID": "17",
            "DATA_DIR": str(tmp_path / "records"),
            "OUTPUT_DIR": str(tmp_path / "out"),
        }
        started.append(
            subprocess.Popen(
                ["bash", str(request.param)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start_it
    for job in started:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def end(job: subprocess.Popen) -> tuple[int, list[str]]:
    output, error = job.communicate(timeout=200)
    assert error == ""
    return job.returncode, output.splitlines()


def test_a_time_that_is_nearly_up_is_passed_on_and_the_job_queued_again(start):
    job = start(WAITING_MPIRUN)
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGUSR1)  # To the shell alone, as Slurm's B: does.
    assert end(job) == (75, ["USR1 came", "scontrol requeue 17"])


def test_a_job_that_is_cancelled_saves_and_is_not_queued_again(start):
    job = start(WAITING_MPIRUN)
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGTERM)
    assert end(job) == (75, ["TERM came"])


def test_ranks_that_are_told_by_somebody_else_are_queued_again(start):
    assert end(start("exit 75")) == (75, ["scontrol requeue 17"])


@pytest.mark.parametrize("code", [0, 1, 2, 137])
def test_what_ends_otherwise_is_not_queued_again(start, code):
    assert end(start(f"exit {code}")) == (code, [])


def test_the_code_is_the_trainings_and_not_that_of_the_signal(start):
    job = start(
        "num=0; trap 'num=$((num + 1)); echo told $num' USR1\necho up\n"
        "while [ $num != 2 ]; do sleep 0.1; done; sleep 0.5; exit 9"
    )
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGUSR1)
    assert job.stdout.readline() == "told 1\n"
    job.send_signal(signal.SIGUSR1)
    assert end(job) == (9, ["told 2"])


def test_a_queue_that_refuses_is_said(start):
    job = start("exit 75", scontrol="exit 1")
    _, error = job.communicate(timeout=200)
    assert job.returncode == 75
    assert "the job can't be requeued" in error
