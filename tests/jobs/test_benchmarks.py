"""The measuring programs run, small, and print the figures that they promise."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import smallest
from tests.converter_program import convert_here
from tests.in_process import assert_refused, run

REPOSITORY = Path(__file__).resolve().parents[2]


def run_program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, REPOSITORY / "eval" / "lab" / name, *arguments],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=200,
        check=False,
    )


@pytest.fixture(params=["jpeg", "png"])
def records_of_format(request, records, tmp_path) -> Path:
    if request.param == "jpeg":
        return records
    for index in range(8):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 50, 3), np.uint8)
        path = tmp_path / "raw" / "train" / f"c{index % 2}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    done = convert_here(tmp_path / "raw", tmp_path / "png", "--num_processes=1")
    assert done.returncode == 0, done.stderr
    return tmp_path / "png"


@pytest.mark.slow
def test_the_input_benchmark_compares_four_ways(records_of_format):
    done = run_program(
        "input_rate.py",
        f"--data_dir={records_of_format}",
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
    done = run_program("imagenet_scale.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert "conversion: " in done.stdout
    assert "checks of 1,000 examples" in done.stdout
    for start in ("first epoch", "last epoch", "in the middle"):
        assert f"{start} (step" in done.stdout
    again = run_program("imagenet_scale.py", *arguments)
    assert again.returncode == 0, again.stderr
    assert "conversion: " not in again.stdout


@pytest.mark.slow
def test_the_balance_of_threads_is_counted():
    done = run_program(
        "thread_balance.py",
        *("--model=resnet8", "--batch_size=4", "--image_size=32", "--threads=1,3"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("processor time of a step with one thread")
    one, three = (line.split() for line in lines[3:5])
    assert (one[0], one[-1], three[0]) == ("1", "100.0%", "3")
    assert int(three[1]) > int(one[1])  # More tasks for more threads.


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("input_rate", (), "--data_dir is required"),
        ("input_rate", ("--data_dir=/", "--rounds=0"), "--rounds must be at least 1"),
        ("input_rate", ("--data_dir=/", "--num_images=39"), "must be at least 40"),
        ("input_rate", ("--data_dir=/",), "/ is not a record set"),
        ("imagenet_scale", (), "--work_dir is required"),
        ("imagenet_scale", ("--work_dir=/x", "--num_images=9"), "at least 1000"),
        ("imagenet_scale", ("--work_dir=/x", "--rounds=0"), "--rounds must be at"),
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
