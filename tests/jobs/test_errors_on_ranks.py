"""What one rank runs into ends the whole job, soon and with a reason."""

import shutil
import sys

import pytest

from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.jobs.conftest import REPOSITORY

pytestmark = pytest.mark.multiprocess

PROGRAM = "tests/jobs/fail_on_one_rank.py"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("agreed", "the disk of rank 1 must hold the records"),
        ("user", "error on rank 1: rank 1 has failed"),
        ("bug", "IndexError: a bug of rank 1"),
    ],
)
def test_what_one_rank_runs_into_is_said_once_and_ends_the_job(run_ranks, what, words):
    job = run_ranks(3, PROGRAM, what)
    assert job.returncode == 2 if what == "agreed" else job.returncode != 0
    assert job.stderr.count(words) == 1
    assert ("Traceback" in job.stderr) == (what == "bug")


def test_a_program_that_starts_ranks_refuses_to_be_one(run_ranks):
    job = run_ranks(2, "eval/benchmark.py", "--sweep_ranks")
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "--sweep_ranks starts its ranks itself; run it without mpirun." in job.stderr


def test_a_rank_that_refuses_to_start_leaves_none_waiting_for_it(run_ranks):
    program = str(REPOSITORY / "resnet/resnet_main.py")
    few_files = ["prlimit", "--nofile=40:40", sys.executable, program, "--list_recipes"]
    job = run_ranks(1, program, "--list_recipes", ":", "-np", "1", *few_files)
    assert job.returncode == 2
    assert job.stderr.count("error: a process must be allowed 64 open files") == 1


def test_ranks_with_different_code_are_refused(run_ranks, records, tmp_path):
    for folder in ("resnet", "data_prep"):
        shutil.copytree(REPOSITORY / folder, tmp_path / "copy" / folder)
    with (tmp_path / "copy/resnet/optim/losses.py").open("a") as file:
        file.write("# A line that the other has not.\n")
    flags = [
        "--recipe=digits",
        "--train_batch_size=8",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
    ]
    copy = str(tmp_path / "copy")
    program = f"{copy}/resnet/resnet_main.py"
    other = [":", "-np", "1", "env", f"PYTHONPATH={copy}", sys.executable, program]
    job = run_ranks(1, "resnet/resnet_main.py", *flags, *other, *flags)
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "the same code of this project (SHA-256); rank 1" in job.stderr


def test_a_rank_that_gets_sighup_is_preempted(run_ranks):
    job = run_ranks(2, PROGRAM, "sighup")
    assert job.returncode == REQUEUE_EXIT_CODE
    assert "stopped. Rerun the same command" in job.stderr


def test_ranks_that_end_at_once_may_end_one_after_the_other(run_ranks):
    """Without C's exit hooks, in one of which MPICH 5 tells Hydra that it is done."""
    job = run_ranks(3, PROGRAM, "late")
    assert job.returncode == 0, job.stdout
    assert "the end of rank 1" in job.stderr
