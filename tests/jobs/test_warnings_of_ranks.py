"""What ranks other than 0 warn of is printed once, with the rank and its host."""

import platform
import re
import shutil

import pytest

from tests import damaged_record, smallest

pytestmark = pytest.mark.multiprocess


def test_a_warning_of_rank_1_names_it_and_that_of_all_ranks_is_rank_0s(run_ranks):
    job = run_ranks(2, "tests/jobs/warn_on_ranks.py")
    assert job.returncode == 0, job.stderr
    lines = job.stderr.splitlines()
    name = f"rank 1 on {platform.node()}"
    of_rank_1 = [line for line in lines if "rank 1" in line]
    warning, error = sorted(of_rank_1, key=len, reverse=True)
    assert re.fullmatch(rf"warning: {name}: a warning of rank 1, .*x\.\.\.", warning)
    assert error == f"error: {name}: an error of rank 1"
    (common,) = [line for line in lines if "of all ranks" in line]
    assert re.match(r"W\d{4} .*\] a warning of all ranks$", common)
    assert sum("a warning of rank 0" in line for line in lines) == 3  # As it logs them.


@pytest.mark.slow
def test_a_corrupt_record_that_rank_1_reads_is_reported_with_its_rank(
    run_ranks, records, tmp_path
):
    copied = tmp_path / "copied"
    shutil.copytree(records, copied)
    places = [damaged_record.flip_a_bit(copied, example) for example in (2, 9, 13, 20)]
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        "--recipe=digits",
        smallest.FLAG,
        "--mode=train",
        "--on_bad_record=skip",
        "--train_batch_size=6",
        "--train_steps=4",  # An epoch: one rank reads each record.
        "--warmup_steps=0",
        "--num_intra_threads=1",
        f"--data_dir={copied}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 0, job.stderr
    lines = [line for line in job.stderr.splitlines() if "skipping a record" in line]
    for path, offset in places:
        assert sum(f"byte {offset} of {path} " in line for line in lines) == 1, lines
    start = f"error: rank 1 on {platform.node()}: skipping a record"
    of_rank_1 = [line for line in lines if line.startswith(start)]
    of_rank_0 = [line for line in lines if re.match(r"E\d{4} .*\] skipping", line)]
    assert of_rank_1
    assert len(of_rank_0) + len(of_rank_1) == len(lines)
