"""The benchmark under mpirun, on records."""

import json
import re

import pytest

from tests import smallest

pytestmark = pytest.mark.multiprocess


def test_ranks_measure_together_on_records(run_ranks, records):
    job = run_ranks(
        2,
        "eval/benchmark.py",
        smallest.FLAG,
        "--image_size=32",
        "--batch_size=3",
        "--steps=2",
        "--profile",
        "--json",
        f"--data_dir={records}",
    )
    assert job.returncode == 0, job.stderr
    lines = job.stdout.splitlines()
    assert sum(line.startswith("images/s, all ranks") for line in lines) == 1
    assert re.search(r"^waiting for images +[\d.]+% of the time$", job.stdout, re.M)
    result = json.loads(lines[-1])
    assert result["ranks"] == 2
    assert 0 < result["min"] <= result["images_per_second"] <= result["max"]
    assert 0 <= result["waited_share"] < 1
    assert "gradient exchange" in result["profile_ms"]


def test_modes_that_start_ranks_refuse_to_be_ranks(run_ranks):
    job = run_ranks(2, "eval/benchmark.py", "--sweep_ranks")
    assert job.returncode == 2
    assert "--sweep_ranks starts its ranks itself; run it without mpirun." in job.stderr
