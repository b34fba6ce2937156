"""What ranks other than 0 warn of is printed once; a damaged record ends the job."""

import platform
import re
import shutil
from pathlib import Path

import pytest

from tests import damaged_record, smallest
from tests.in_process import succeeded

pytestmark = pytest.mark.multiprocess


def test_a_warning_of_rank_1_names_it_and_that_of_all_ranks_is_rank_0s(run_ranks):
    job = succeeded(run_ranks(2, "tests/jobs/warn_on_ranks.py"))
    lines = job.stderr.splitlines()
    name = f"rank 1 on {platform.node()}"
    of_rank_1 = [line for line in lines if "rank 1" in line]
    warning, error = sorted(of_rank_1, key=len, reverse=True)
    assert re.fullmatch(rf"warning: {name}: a warning of rank 1, .*x\.\.\.", warning)
    assert error == f"error: {name}: an error of rank 1"
    (common,) = [line for line in lines if "of all ranks" in line]
    assert common == "warning: a warning of all ranks"
    assert sum("a warning of rank 0" in line for line in lines) == 3  # As it logs them.


@pytest.fixture
def damaged(records, tmp_path) -> Path:
    return Path(shutil.copytree(records, tmp_path / "damaged"))


def flags_of(damaged: Path) -> list[str]:
    """A training of an epoch: each record is read once."""
    return [
        *("--recipe=digits", smallest.FLAG, "--mode=train", "--num_intra_threads=1"),
        *("--train_batch_size=6", "--train_steps=4", "--warmup_steps=0"),
        *(f"--data_dir={damaged}", f"--model_dir={damaged.parent / 'model'}"),
    ]


@pytest.mark.parametrize(
    ("num_ranks", "mode"),
    [(2, "bsp"), pytest.param(3, "async", marks=pytest.mark.slow)],
)
def test_a_damaged_record_ends_the_job_with_its_file_and_offset(
    run_ranks, damaged, num_ranks, mode
):
    path, offset = damaged_record.flip_a_bit(damaged, example=13)
    flags = (f"--sync_mode={mode}", *flags_of(damaged))
    job = run_ranks(num_ranks, "resnet/resnet_main.py", *flags)
    assert job.returncode == 2, job.stderr
    assert f"the record at byte {offset} of {path} is corrupt" in job.stderr
    assert "Traceback" not in job.stderr


@pytest.mark.slow
def test_a_corrupt_record_that_rank_1_reads_is_reported_with_its_rank(
    run_ranks, damaged
):
    places = [damaged_record.flip_a_bit(damaged, example) for example in (2, 9, 13, 20)]
    flags = ("--on_bad_record=skip", *flags_of(damaged))
    job = succeeded(run_ranks(2, "resnet/resnet_main.py", *flags))
    lines = [line for line in job.stderr.splitlines() if "skipping a record" in line]
    for path, offset in places:
        assert sum(f"byte {offset} of {path} " in line for line in lines) == 1, lines
    start = f"error: rank 1 on {platform.node()}: skipping a record"
    of_rank_1 = [line for line in lines if line.startswith(start)]
    of_rank_0 = [line for line in lines if line.startswith("error: skipping")]
    assert of_rank_1
    assert len(of_rank_0) + len(of_rank_1) == len(lines)
