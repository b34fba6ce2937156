"""Fifty kills at random moments change nothing about a run but its time."""

import os
import random
import signal
import time

import numpy as np
import pytest

from resnet.checkpoint import tensors
from resnet.checkpoint.step_dirs import saved_steps
from tests import tiny_set
from tests.fault.test_resume import read_order

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.parametrize("hosts", [1], indirect=True),
]

KILLS = int(os.environ.get("SOAK_KILLS", "50"))
SECONDS_OF_TRAINING = 4.0  # From one kill to the next, at most.
PART_BETWEEN_KILLS = (
    0.75  # Of the steps, at most on average: the last start has the rest.
)
EXAMPLES = 1437  # Of handwritten digits, to train on.
BATCH = 24
STEPS = 1200
FLAGS = (
    f"--train_batch_size={BATCH}",
    f"--train_steps={STEPS}",
    "--checkpoint_every=2steps",
)


@pytest.fixture
def records(tmp_path):
    """The digits of the demo."""
    tiny_set.make_digits(tmp_path)
    return tmp_path / "records"


def test_fifty_kills_change_nothing_but_the_time(start, model_dir, tmp_path):
    random.seed(os.environ.get("SOAK_SEED", "0"))
    whole = tmp_path / "whole"
    started = time.monotonic()
    job = start(*FLAGS, f"--model_dir={whole}")
    job.wait_for_step(1)
    seconds_of_start = time.monotonic() - started
    assert job.end(600) == 0, job.output
    seconds_of_training = time.monotonic() - started - seconds_of_start
    # Kills come from 0 to this time of training: after half of it, on average.
    longest = 2 * PART_BETWEEN_KILLS * seconds_of_training / KILLS
    longest = min(longest, SECONDS_OF_TRAINING)
    log = tmp_path / "log"
    for number in range(KILLS):
        job = start(*FLAGS, f"--record_log={log}")
        time.sleep(random.uniform(0, seconds_of_start + longest))
        job.kill(random.randrange(2), signal.SIGKILL)
        assert job.end(30) != 0, f"kill {number} came after the end"
        left = job.leftovers()
        if " ranks: " not in job.output:  # Its watchdogs may not run yet.
            left = [one for one in left if not one.startswith("mpich_shm_")]
        assert left == [], f"after kill {number}"
    job = start(*FLAGS, f"--record_log={log}")
    assert job.end(600) == 0, job.output
    last = saved_steps(whole)[-1]
    expected = tensors.load(whole, last).tensors
    found = tensors.load(model_dir, last).tensors
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    order = read_order(log)
    assert sorted(order) == list(range(STEPS))
    read = [one for step in range(STEPS) for one in order[step]]
    assert len(read) == STEPS * BATCH
    epochs = [read[at : at + EXAMPLES] for at in range(0, len(read), EXAMPLES)]
    for number, epoch in enumerate(epochs):  # The last one isn't whole.
        assert len(set(epoch)) == len(epoch), f"epoch {number}"
