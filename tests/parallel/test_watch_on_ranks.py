"""An evaluation that waits for the checkpoints of a run, on ranks."""

import json
from pathlib import Path

import pytest

from eval import resnet_eval
from resnet import resnet_main
from resnet.checkpoint.step_dirs import of_step, saved_steps
from tests import smallest


@pytest.fixture
def folders(records, tmp_path) -> tuple[str, str]:
    return f"--data_dir={records}", f"--model_dir={tmp_path / 'model'}"


@pytest.fixture
def stopped_run(run, folders, tmp_path) -> Path:
    """Returns a run of 1000 steps that ends after two, since it is good enough."""
    run(
        resnet_main,
        "--recipe=digits",
        smallest.FLAG,
        "--train_batch_size=6",
        "--warmup_steps=0",
        "--train_steps=1000",
        "--eval_every=2steps",
        "--stop_at=0.01",
        *folders,
    )
    return tmp_path / "model"


def test_a_run_that_was_good_enough_has_ended(
    lockstep, run, folders, stopped_run, tmp_path
):
    steps = saved_steps(stopped_run)
    # A later one that is damaged is passed over, with a note.
    lockstep.from_rank_0(of_step(stopped_run, 999).mkdir)
    json_file = tmp_path / "eval.json"
    job = run(resnet_eval, "--watch", f"--json_file={json_file}", *folders)
    assert "Skipping the checkpoint of step 999: the checkpoint" in job.stderr
    found = json.loads(json_file.read_text())["results"]
    assert [one["global_step"] for one in found] == steps == [2]
    assert "waiting" not in job.stdout


def test_it_does_not_wait_without_end(run, folders):
    job = run(resnet_eval, "--watch", "--watch_minutes=0.02", *folders, code=1)
    assert job.stderr.count("error: no new checkpoint has appeared") == 1
