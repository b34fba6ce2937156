"""The progress of a conversion or verification."""

import types

import pytest

from data_prep import worker_processes
from data_prep.worker_processes import Progress


@pytest.fixture
def clock(monkeypatch):
    """Returns a clock that advances only when the test says so."""
    clock = types.SimpleNamespace(now=1000.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(worker_processes, "time", clock)
    return clock


def test_a_log_gets_a_line_for_each_tenth(clock, capsys):
    with Progress(50, "records") as shown:
        for _ in range(3):
            clock.now += 2
            shown.add(4)
    assert capsys.readouterr().err == (
        "10 %: 8 of 50 records, 2 records per second\n"
        "20 %: 12 of 50 records, 2 records per second\n"
    )


def test_the_rate_is_that_of_the_images_since_it_was_started(clock, capsys):
    with Progress(1000, "images") as shown:
        clock.now += 1
        shown.add(900)
        capsys.readouterr()
        shown.start_rate()
        clock.now += 10
        shown.add(100)
        assert shown.rate() == 10
    last = "100 %: 1,000 of 1,000 images, 10 images per second\n"
    assert capsys.readouterr().err == last
