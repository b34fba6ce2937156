"""A damaged record, which only the rank that reads it knows of, ends the job."""

import shutil

import pytest

from data_prep.records import manifest
from tests import smallest

pytestmark = pytest.mark.multiprocess

EXAMPLE = 13


def test_a_damaged_record_ends_the_job_with_its_file_and_offset(
    run_ranks, records, tmp_path
):
    shutil.copytree(records, tmp_path / "copied")
    record_set = manifest.load(str(tmp_path / "copied"), "train")
    split = record_set.manifest.splits["train"]
    shard = split.shards[int(manifest.shard_of_example(split)[EXAMPLE])]
    offset = int(manifest.read_offsets(record_set, split)[EXAMPLE])
    path = record_set.records_dir / shard.path
    content = bytearray(path.read_bytes())
    content[offset + 300] ^= 8
    path.write_bytes(content)
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        "--recipe=digits",
        smallest.FLAG,
        "--mode=train",
        "--train_batch_size=6",
        "--train_steps=8",
        "--warmup_steps=0",
        "--num_intra_threads=1",
        f"--data_dir={record_set.records_dir}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 2
    assert f"the record at byte {offset} of {path} is corrupt" in job.stderr
    assert "Traceback" not in job.stderr
