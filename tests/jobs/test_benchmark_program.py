"""The benchmark of a training step runs, small, and prints the figures it promises."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import smallest
from tests.processes import completed

PROGRAM = Path(__file__).resolve().parents[2] / "eval" / "benchmark.py"
TINY = (smallest.FLAG, "--image_size=32", "--batch_size=2", "--steps=2")


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, PROGRAM, *arguments], cwd="/")


def test_the_program_measures_and_prints_json_last():
    done = run_program(*TINY, "--stock_ops", "--warmup_steps=1", "--profile", "--json")
    assert done.returncode == 0, done.stderr
    for row in ("images/s, all ranks", "limit: 3x3 convolution", "weight gradients"):
        assert re.search(rf"^{row} +[\d.]+ ", done.stdout, re.M)
    result = json.loads(done.stdout.splitlines()[-1])
    assert 0 < result["min"] <= result["images_per_second"] <= result["max"]
    assert result["flops_share"] == pytest.approx(
        result["gflops"] / result["matmul_gflops"], abs=1e-3
    )
    assert result["peak_memory_mb"] > 100
    assert result["start_seconds"] > result["first_step_seconds"] > 0
    assert result["profile_ms"]["weight gradients"] > 0
    expected = {
        "model": smallest.NETWORK,
        "ranks": 1,
        "compiled_ops": False,
        "instruction_set": "NONE",
        "input_wait_share": None,
    }
    assert {name: result[name] for name in expected} == expected
    assert set(result["versions"]) == {"TensorFlow", "Keras"}
    assert result["cpu"]


@pytest.mark.slow
def test_the_program_compares_itself_with_a_command():
    done = run_program(
        *TINY,
        "--infer",
        "--precision=bf16",
        "--pairs=1",
        "--vs=echo '{\"images_per_second\": 0.5}'",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["theirs"] == [0.5]
    assert result["ratio"] == pytest.approx(result["ours"][0] / 0.5)
    assert re.search(r"^ +1 +[\d.,]+ +0\.50 +[\d.]+$", done.stdout, re.M)
