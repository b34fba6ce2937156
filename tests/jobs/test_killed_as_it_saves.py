"""A rank that is killed while it saves its own state costs that checkpoint only."""

import pytest

from resnet.checkpoint.step_dirs import saved_steps

pytestmark = pytest.mark.multiprocess

PROGRAM = "tests/jobs/killed_as_it_saves.py"


def test_a_rank_that_is_killed_while_it_saves_leaves_the_older_ones(
    run_ranks, tmp_path
):
    checkpoints = tmp_path / "checkpoints"
    job = run_ranks(2, PROGRAM, str(tmp_path))
    assert job.returncode != 0
    assert saved_steps(tmp_path) == [5]
    assert (checkpoints / ".step-00000006.unfinished").is_dir()
    job = run_ranks(2, PROGRAM, str(tmp_path))
    assert job.returncode == 0, job.stderr
    assert "resumed as it was after step 5\n" in job.stdout
    assert [entry.name for entry in checkpoints.iterdir()] == ["step-00000005"]
