import multiprocessing
import os
import signal
import time
import types

import pytest

from data_prep import worker_processes
from resnet.base.errors import UserError


# Functions for other processes are from modules that those can import, as built-in ones
# are; a test file is not.
def test_each_job_is_done_once():
    results: list[int] = []
    worker_processes.run(abs, range(-20, 0), 3, results.append)
    assert sorted(results) == list(range(1, 21))
    assert multiprocessing.active_children() == []


def test_jobs_are_made_when_a_process_is_free_for_them():
    made = taken = 0

    def jobs():
        nonlocal made
        for _ in range(20):
            made += 1
            assert made - taken <= 2 + 1
            yield -1

    def take(result: int) -> None:
        nonlocal taken
        taken += result

    worker_processes.run(abs, jobs(), 2, take)
    assert (made, taken) == (20, 20)


def test_an_error_in_a_process_is_that_of_the_caller_and_ends_the_others_at_once():
    with pytest.raises(FileNotFoundError, match="/absent"):
        worker_processes.run(os.stat, ["/", "/absent", *["/"] * 9], 1, lambda _: None)
    start = time.monotonic()
    with pytest.raises(TypeError):
        worker_processes.run(time.sleep, [60, "no number"], 2, lambda _: None)
    assert time.monotonic() - start < 30
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_an_error_with_advice():
    with pytest.raises(UserError, match="--num_processes less than 2"):
        worker_processes.run(os._exit, [1], 2, lambda _: None)


def test_an_interruption_ends_the_processes():
    def interrupt(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        worker_processes.run(time.sleep, [0, 60, 60], 2, interrupt)
    assert multiprocessing.active_children() == []


def test_a_log_gets_a_line_for_each_tenth_with_the_rate_since_it_was_started(
    monkeypatch, capsys
):
    clock = types.SimpleNamespace(now=1000.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(worker_processes, "time", clock)
    with worker_processes.Progress(50, "records", is_quiet=True) as quiet:
        quiet.add(50)
    assert capsys.readouterr().err == ""
    with worker_processes.Progress(50, "records") as progress:
        for _ in range(3):
            clock.now += 2
            progress.add(4)
        progress.start_rate()
        clock.now += 1
        progress.add(38)
        assert progress.rate() == 38
    assert capsys.readouterr().err == (
        "16 %: 8 of 50 records, 2 records per second\n"
        "24 %: 12 of 50 records, 2 records per second\n"
        "100 %: 50 of 50 records, 38 records per second\n"
    )
