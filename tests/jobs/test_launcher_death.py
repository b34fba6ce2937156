"""A rank and its wrapper, without MPI."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resnet.runtime import launcher_death
from resnet.watchdog import proc

# Prints the rank's process id, then waits for a stop request and says which it was.
PROGRAM = """
import ctypes, os, signal, sys, threading, time
from resnet.runtime import launcher_death, preemption
signals = preemption.StopSignals(launcher_death.fork_rank())
forever = threading.Event().wait
if sys.argv[1] != "starting":
    signals.outlive_launcher(bool if sys.argv[1] == "unwatched" else forever)
mutex, lock = ctypes.create_string_buffer(256), ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
print(os.getpid(), flush=True)
if sys.argv[1] == "computing":
    signal.alarm(60)
    lock(mutex)  # One call of C, in which Python calls no handler.
while not signals.seen:
    time.sleep(0.01)
print("saving")  # Where nobody reads any more.
sys.stdout.flush()
with open(sys.argv[2], "w") as file:
    file.write(signals.seen)
sys.exit(75)
"""
UNDER_HYDRA = {"PMI_FD": "9", "MPI_LOCALRANKID": "0"}
SOON = 30.0


@pytest.fixture
def start(tmp_path) -> Iterator:
    """Returns `start(state)`, which returns the wrapper and the rank's process id."""
    wrappers, ranks = [], []
    not_of_intel_mpi = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("I_MPI_")
    }

    def start_it(state: str) -> tuple[subprocess.Popen, int]:
        wrapper = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, state, str(tmp_path / "saved")],
            env={**not_of_intel_mpi, **UNDER_HYDRA},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        wrappers.append(wrapper)
        ranks.append(int(wrapper.stdout.readline()))
        return wrapper, ranks[-1]

    yield start_it
    for wrapper in wrappers:
        wrapper.kill()
        wrapper.wait()
        wrapper.stdout.close()
    for rank in ranks:
        wait_until(lambda rank=rank: proc.parent_of(rank) is None)


def wait_until(is_so) -> None:
    deadline = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_whose_launcher_kills_the_stand_in_saves(start, tmp_path):
    wrapper, rank = start("watched")
    assert proc.parent_of(rank) == wrapper.pid
    os.killpg(wrapper.pid, signal.SIGKILL)  # As Hydra's proxy does.
    wrapper.stdout.close()
    saved = tmp_path / "saved"
    wait_until(lambda: saved.exists() and saved.read_text() == "SIGTERM")


@pytest.mark.parametrize("state", ["starting", "unwatched"])
def test_a_rank_that_could_hang_dies_with_its_launcher(start, tmp_path, state):
    wrapper, rank = start(state)
    wrapper.kill()
    wait_until(lambda: proc.parent_of(rank) is None)
    if state == "starting":  # Otherwise it may save before it is found unwatched.
        assert not (tmp_path / "saved").exists()


def test_a_rank_that_computes_dies_with_its_launcher_after_a_keystroke(start):
    wrapper, rank = start("computing")
    time.sleep(0.2)
    wrapper.send_signal(signal.SIGINT)
    time.sleep(0.3)
    wrapper.kill()
    wait_until(lambda: proc.parent_of(rank) is None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_and_the_exit_code_are_passed_on(start, tmp_path, number):
    wrapper, _ = start("watched")
    os.killpg(wrapper.pid, number)
    assert wrapper.wait(SOON) == 75
    assert (tmp_path / "saved").read_text() == number.name


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_wrapper_ends_by_the_signal_that_ended_its_rank(start, number):
    wrapper, rank = start("watched")
    comm = Path(f"/proc/{wrapper.pid}/comm")
    wait_until(lambda: comm.read_text().strip() == launcher_death.WRAPPER_NAME)
    os.kill(rank, number)
    assert wrapper.wait(SOON) == -number


def test_only_mpichs_ranks_get_a_wrapper(monkeypatch):
    for name in UNDER_HYDRA:
        monkeypatch.delenv(name, raising=False)
    assert launcher_death.fork_rank() is None
    for name, value in UNDER_HYDRA.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("I_MPI_PIN", "1")
    assert launcher_death.fork_rank() is None
