"""What one rank runs into ends the whole job, soon and with a reason."""

import json
import shutil
import sys

import pytest

pytestmark = pytest.mark.multiprocess

PROGRAM = "tests/jobs/fail_on_one_rank.py"


def test_a_mistake_that_one_rank_finds_is_said_once_and_all_end_with_2(run_ranks):
    job = run_ranks(3, PROGRAM, "agreed")
    assert job.returncode == 2
    assert job.stderr.count("the disk of rank 1 must hold the records") == 1
    assert "Traceback" not in job.stderr


def test_a_mistake_that_only_one_rank_knows_of_ends_the_job(run_ranks):
    job = run_ranks(3, PROGRAM, "user")
    assert job.returncode != 0
    assert "error on rank 1: rank 1 can't go on" in job.stderr
    assert "Traceback" not in job.stderr


def test_a_bug_on_one_rank_ends_the_job_with_its_traceback(run_ranks):
    job = run_ranks(3, PROGRAM, "bug")
    assert job.returncode != 0
    assert "rank 1 failed" in job.stderr
    assert "IndexError: a bug of rank 1" in job.stderr


def test_a_batch_that_ranks_cannot_share_is_refused_in_one_sentence(
    run_ranks, records, tmp_path
):
    job = run_ranks(
        3,
        "resnet/resnet_main.py",
        "--recipe=digits",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
        "--train_batch_size=8",
    )
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "Use 6 or 9." in job.stderr
    assert not (tmp_path / "model").exists()


def test_a_misspelt_flag_is_refused_in_one_sentence(run_ranks):
    job = run_ranks(2, "resnet/resnet_main.py", "--train_batchsize=8")
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "train_batchsize" in job.stderr


def test_ranks_with_different_records_are_refused(run_ranks, records, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(records, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["sha256"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    job = run_ranks(
        2,
        "tests/jobs/main_with_other_records.py",
        str(other),
        "--recipe=digits",
        "--train_batch_size=6",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "all ranks must have the same data set and settings; rank 1" in job.stderr


def test_ranks_with_different_flags_are_refused(run_ranks, records, tmp_path):
    arguments = [
        "resnet/resnet_main.py",
        "--recipe=digits",
        "--train_batch_size=8",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
    ]
    other = [":", "-np", "1", sys.executable, *arguments, "--weight_decay=0.25"]
    job = run_ranks(1, *arguments, *other)
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "all ranks must have the same data set and settings; rank 1" in job.stderr


def test_ranks_with_different_code_are_refused(run_ranks, records, tmp_path):
    for folder in ("resnet", "data_prep"):
        shutil.copytree(folder, tmp_path / "copy" / folder)
    with (tmp_path / "copy/resnet/losses.py").open("a") as file:
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


def test_a_training_that_diverges_is_one_sentence(run_ranks, records, tmp_path):
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        "--recipe=digits",
        "--train_batch_size=6",
        "--train_steps=20",
        "--warmup_steps=0",
        "--peak_learning_rate=1e30",
        "--log_step_count_steps=1",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 1
    assert job.stderr.count("error: the loss of step") == 1
    assert "Traceback" not in job.stderr


def test_a_file_of_numbers_that_cannot_be_written_is_one_sentence(
    run_ranks, records, tmp_path
):
    (tmp_path / "model" / "metrics.jsonl").mkdir(parents=True)
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        "--recipe=digits",
        "--train_batch_size=6",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "metrics.jsonl must be a file that can be read" in job.stderr
    assert "Traceback" not in job.stderr
