"""The measuring programs run, small, and print the figures that they promise."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import smallest
from tests.in_process import assert_refused, run, succeeded
from tests.processes import completed

REPOSITORY = Path(__file__).resolve().parents[2]


def run_program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(
        [sys.executable, REPOSITORY / "eval" / "lab" / name, *arguments], cwd="/"
    )


@pytest.mark.slow
def test_the_input_benchmark_compares_four_ways(records):
    done = run_program(
        "input_rate.py",
        f"--data_dir={records}",
        "--image_size=32",
        "--num_images=200",
        "--rounds=1",
    )
    assert done.returncode == 0, done.stderr
    for way in ("plain tf.data", "sequential", "random order", "February 2018"):
        assert re.search(rf"^{way} +\d+ \(.* images/s per core$", done.stdout, re.M)
    for ratio in ("plain tf.data", "sequential", "February 2018"):
        assert re.search(
            rf"^random order / {ratio} +\d+\.\d+ \(.*n=1\)$", done.stdout, re.M
        )
    (difference,) = re.findall(r"largest difference of a pixel +(\S+)", done.stdout)
    assert 0 < float(difference) < 2e-5


@pytest.mark.slow
def test_the_benchmark_of_scale_converts_and_starts(tmp_path):
    arguments = (f"--work_dir={tmp_path}", "--num_images=1000", "--rounds=1")
    done = succeeded(run_program("imagenet_scale.py", *arguments))
    assert "conversion: " in done.stdout
    assert "checks of 1,000 examples" in done.stdout
    for start in ("first epoch", "last epoch", "in the middle"):
        assert f"{start} (step" in done.stdout
    again = succeeded(run_program("imagenet_scale.py", *arguments))
    assert "conversion: " not in again.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("input_rate", (), "--data_dir is required"),
        ("input_rate", ("--data_dir=/", "--num_images=39"), "must be at least 40"),
        ("imagenet_scale", ("--work_dir=/x", "--num_images=9"), "at least 1000"),
        ("thread_balance", ("--threads=2,x",), "--threads must be whole numbers"),
        ("exchange_cost", ("--interface=none0",), "--interface must be one of this"),
        ("sync_modes", ("--data_dir=x", "--steps=15"), "more than 3 times"),
    ],
)
def test_a_wrong_flag_is_one_sentence(name, arguments, message):
    program = importlib.import_module(f"eval.lab.{name}")
    assert_refused(run(program, *arguments), message)


@pytest.mark.slow
def test_both_modes_of_synchronization_are_compared(records):
    done = run_program(
        "sync_modes.py",
        *(f"--data_dir={records}", "--recipe=digits", "--num_workers=2"),
        *("--speed=0.5", "--steps=12", "--steps_per_line=2", "--pairs=1"),
        f"--train_flags={smallest.FLAG} --train_batch_size=4 --num_intra_threads=1",
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  bsp +[\d.,]+ +- +-$", done.stdout, re.M)
    assert re.search(r"^async +[\d.,]+ +\d\.\d\d +\d+\.\d%$", done.stdout, re.M)
    assert re.search(r"^async / bsp: \d+\.\d+ \(.*, n=1\)$", done.stdout, re.M)
    (share,) = re.findall(r"^share of .*: (\d\.\d+) \(", done.stdout, re.M)
    assert 0 < float(share) < 1
