"""Jobs of which a rank, or the host of a single one, becomes slow."""

import os
import platform
import re
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from eval.lab.sync_modes import slowed
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import history

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.parametrize("hosts", [1], indirect=True),
]
FLAGS = ("--model=resnet9", "--train_steps=100000", "--checkpoint_every=100000steps")
NOTICED = "of the usual speed"


def first_slow_event(model_dir) -> dict[str, Any]:
    events, _ = history.read(model_dir)
    return next(event for event in events if event["event"] == history.SLOW)


def test_a_rank_that_is_stopped_half_of_the_time_is_named(start, model_dir):
    job = start(*FLAGS)
    job.wait_for_step(2)
    with slowed(psutil.Process(job.pid(1)), speed=0.5):
        job.wait_until(lambda: NOTICED in job.output)
    job.signal_mpirun(signal.SIGTERM)
    assert job.end(60) == REQUEUE_EXIT_CODE
    event = first_slow_event(model_dir)
    assert event["part"] == pytest.approx(0.5, abs=0.25)
    assert event["host"] == platform.node()
    assert event["reason"].startswith("rank 1 on ")
    assert "and all ranks wait for it: " in event["reason"]


def test_the_process_that_takes_the_processors_is_named(start, model_dir):
    job = start(*FLAGS, num_ranks=1)
    job.wait_for_step(2)
    time.sleep(40)  # In which its usual speed is found.
    cpus = len(os.sched_getaffinity(job.pid(0)))
    script = "while True: pass"
    spinning = [
        subprocess.Popen([sys.executable, "-c", script]) for _ in range(3 * cpus)
    ]
    try:
        job.wait_until(lambda: NOTICED in job.output)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    job.signal_mpirun(signal.SIGTERM)
    assert job.end(60) == REQUEUE_EXIT_CODE
    sentence = first_slow_event(model_dir)["reason"]
    assert "of its threads wait for a processor" in sentence
    # Not necessarily one of ours, where other jobs run.
    assert re.search(r"process \d+ \(.+\) takes \d+ % of a processor", sentence)
