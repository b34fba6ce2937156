"""Each example is used once an epoch, counted by the weights on the servers.

The program is `counting_main`, whose weights tell how often each example was used.
"""

import json
import math
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet.checkpoint import tensors
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests import tiny_set
from tests.fault.job import Job
from tests.made_once import made_once
from tests.processes import completed
from tests.sources import ROOT

pytestmark = pytest.mark.fault

NUM_EXAMPLES, BATCH = 24, 6
STEPS_PER_EPOCH = NUM_EXAMPLES // BATCH
FLAGS = (
    *("--recipe=digits_mlp", "--model=resnet8", "--image_size=32", "--mode=train"),
    *("--peak_learning_rate=1", "--momentum=0", "--weight_decay=0"),
    *(f"--train_batch_size={BATCH}", "--log_step_count_steps=1"),
    *("--checkpoint_every=25steps", "--stall_seconds=5"),
    *("--num_intra_threads=1", "--num_parallel_calls=1", "--sync_mode=async"),
)


def draw_one_image_of_each_class(folder: Path) -> None:
    random = np.random.default_rng(0)
    for label in range(NUM_EXAMPLES):
        class_folder = folder / "raw" / "train" / f"class{label:02}"
        class_folder.mkdir(parents=True)
        pixels = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(class_folder / "0.jpg")
    tiny_set.convert(folder / "raw", folder / "records", "--train_shards=2")


@pytest.fixture
def start(tmp_path, tmp_path_factory, mpirun):
    """Returns `start(num_ranks, *flags)`; the jobs end with the test."""
    folder = made_once(tmp_path_factory, "singles", draw_one_image_of_each_class)
    started: list[Job] = []

    def start_job(num_ranks: int, *flags: str) -> Job:
        folders = (f"--data_dir={folder / 'records'}", f"--model_dir={tmp_path / 'm'}")
        started.append(
            Job(
                mpirun(num_ranks),
                num_ranks,
                [*FLAGS, *folders, *flags],
                "tests/fault/counting_main.py",
            )
        )
        return started[-1]

    yield start_job
    for job in started:
        job.__exit__()


def times_used(model_dir: Path) -> list[float]:
    """Returns how often each example was used, in the order of the classes."""
    checkpoint = tensors.load_newest(model_dir)
    (bias,) = (
        value
        for name, value in checkpoint.tensors.items()
        if np.shape(value) == (NUM_EXAMPLES,) and "velocity" not in name
    )
    return (-np.asarray(bias)).tolist()


def test_every_example_counts_once_an_epoch_also_after_kills(start, tmp_path, outcome):
    job = start(4)  # Rank 1 serves, ranks 2 and 3 work.
    job.wait_for_step(7)
    for index in range(2):
        killed = job.signal_child("worker", index, signal.SIGKILL)
        job.wait_until(lambda i=index: f"worker {i} was killed" in job.output)
    job.wait_for_step(job.step + 30)
    assert job.child_pid("worker", 1) != killed
    job.kill(3, signal.SIGTERM)
    code = job.end(30)
    outcome("kill -9 of all workers, one after the other, then SIGTERM", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    last = tensors.load_newest(tmp_path / "m").step
    assert sum(times_used(tmp_path / "m")) == last * BATCH
    epochs = last // STEPS_PER_EPOCH + 2
    resumed = start(3, f"--stop_after_steps={epochs * STEPS_PER_EPOCH}")
    assert resumed.end(60) == 0, resumed.output
    assert f"Current step {last}." in resumed.output
    assert times_used(tmp_path / "m") == [epochs] * NUM_EXAMPLES
    lines = (tmp_path / "m/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == list(range(1, epochs * STEPS_PER_EPOCH + 1))
    assert resumed.leftovers() == []


@pytest.mark.slow
def test_no_call_waits_forever_while_workers_come_back():
    """The coordinator updates its cluster for each; the program does so many times."""
    run = completed([sys.executable, "-m", "tests.fault.updated_cluster"], cwd=ROOT)
    assert run.returncode == 0, run.stderr
    num_calls, num_updates = map(int, run.stdout.split())
    assert num_calls > 20
    assert num_updates > 200


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1], indirect=True)
@pytest.mark.parametrize(
    ("num_servers", "num_workers"), [(1, 1), (1, 2), (1, 3), (2, 2)]
)
def test_no_update_is_lost_in_500(start, tmp_path, num_servers, num_workers):
    epochs = math.ceil(500 / (num_workers * STEPS_PER_EPOCH))
    job = start(
        1 + num_servers + num_workers,
        f"--num_ps={num_servers}",
        f"--stop_after_steps={epochs * STEPS_PER_EPOCH}",
    )
    assert job.end(90) == 0, job.output
    assert times_used(tmp_path / "m") == [epochs] * NUM_EXAMPLES
    assert job.leftovers() == []
