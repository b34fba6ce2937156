"""A small study of compressed gradients, with the training program itself."""

import json

import pytest

from tests import main_run
from tests.jobs.conftest import Job

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def test_a_study_of_two_rows_on_two_ranks(run_ranks: Job, records, tmp_path):
    folder = tmp_path / "study"
    flags = (
        *(f"--data_dir={records}", "--recipe=digits", f"--output_dir={folder}"),
        *("--methods=topk:ratio=0.1", "--ways=layerwise", "--feedback=with"),
        *("--num_ranks=2", f"--train_flags={' '.join(main_run.FLAGS[1:])}"),
    )
    done = run_ranks(1, "eval/lab/compression_study.py", *flags)
    assert done.returncode == 0, done.stderr
    runs = json.loads((folder / "study.json").read_text())["runs"]
    dense, topk = (one["result"] for one in runs)
    # On two ranks each byte is sent once, in a message or in a ring.
    for result in (dense, topk):
        assert result["bytes_sent"] == result["message_bytes"]
        assert result["steps"] == 6
        assert 0 < result["exchange_share"] < 1
        assert result["seconds"] > 0
    assert dense["compression_error"] is None
    assert 0 < topk["compression_error"] < 1
    assert dense["message_bytes"] / topk["message_bytes"] > 5
    assert (folder / "study.png").exists()

    again = run_ranks(1, "eval/lab/compression_study.py", *flags)
    assert again.stdout == done.stdout
    assert json.loads((folder / "study.json").read_text())["runs"] == runs
