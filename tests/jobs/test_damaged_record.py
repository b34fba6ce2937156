"""A damaged record, which only the rank that reads it knows of, ends the job."""

import shutil

import pytest

from tests import damaged_record, smallest

pytestmark = pytest.mark.multiprocess


@pytest.mark.parametrize(
    ("num_ranks", "mode"),
    [(2, "bsp"), pytest.param(3, "async", marks=pytest.mark.slow)],
)
def test_a_damaged_record_ends_the_job_with_its_file_and_offset(
    run_ranks, records, tmp_path, num_ranks, mode
):
    copied = tmp_path / "copied"
    shutil.copytree(records, copied)
    path, offset = damaged_record.flip_a_bit(copied, example=13)
    job = run_ranks(
        num_ranks,
        "resnet/resnet_main.py",
        f"--sync_mode={mode}",
        "--recipe=digits",
        smallest.FLAG,
        "--mode=train",
        "--train_batch_size=6",
        "--train_steps=8",
        "--warmup_steps=0",
        "--num_intra_threads=1",
        f"--data_dir={copied}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 2, job.stderr
    assert f"the record at byte {offset} of {path} is corrupt" in job.stderr
    assert "Traceback" not in job.stderr
