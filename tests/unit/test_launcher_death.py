"""A rank and its stand-in, without MPI."""

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
import os, sys, threading, time
from resnet.runtime import launcher_death, preemption
signals = preemption.StopSignals(launcher_death.fork_rank())
forever = threading.Event().wait
if sys.argv[1] != "starting":
    signals.outlive_launcher({"watched": forever, "unwatched": bool}[sys.argv[1]])
print(os.getpid(), flush=True)
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
    """Returns `start(state)`, which returns the stand-in and the rank's process id."""
    stand_ins, ranks = [], []

    def start_it(state: str) -> tuple[subprocess.Popen, int]:
        stand_in = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, state, str(tmp_path / "saved")],
            env={**os.environ, **UNDER_HYDRA},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        stand_ins.append(stand_in)
        ranks.append(int(stand_in.stdout.readline()))
        return stand_in, ranks[-1]

    yield start_it
    for stand_in in stand_ins:
        stand_in.kill()
        stand_in.wait()
        stand_in.stdout.close()
    for rank in ranks:
        wait_until(lambda rank=rank: proc.parent_of(rank) is None)


def wait_until(is_so) -> None:
    deadline = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_whose_launcher_kills_the_stand_in_saves(start, tmp_path):
    stand_in, rank = start("watched")
    assert proc.parent_of(rank) == stand_in.pid
    os.killpg(stand_in.pid, signal.SIGKILL)  # As Hydra's proxy does.
    stand_in.stdout.close()
    saved = tmp_path / "saved"
    wait_until(lambda: saved.exists() and saved.read_text() == "SIGTERM")


@pytest.mark.parametrize("state", ["starting", "unwatched"])
def test_a_rank_that_could_hang_dies_with_its_launcher(start, tmp_path, state):
    stand_in, rank = start(state)
    stand_in.kill()
    wait_until(lambda: proc.parent_of(rank) is None)
    if state == "starting":  # Otherwise it may save before it is found unwatched.
        assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_and_the_exit_code_are_passed_on(start, tmp_path, number):
    stand_in, _ = start("watched")
    os.killpg(stand_in.pid, number)
    assert stand_in.wait(SOON) == 75
    assert (tmp_path / "saved").read_text() == number.name


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_stand_in_ends_by_the_signal_that_ended_its_rank(start, number):
    stand_in, rank = start("watched")
    os.kill(rank, number)
    assert stand_in.wait(SOON) == -number


def test_the_stand_in_has_a_launchers_name(start):
    stand_in, _ = start("watched")
    comm = Path(f"/proc/{stand_in.pid}/comm")
    wait_until(lambda: comm.read_text().strip() == launcher_death.STAND_IN_NAME)


def test_only_mpichs_ranks_get_a_stand_in(monkeypatch):
    for name in UNDER_HYDRA:
        monkeypatch.delenv(name, raising=False)
    assert launcher_death.fork_rank() is None
    for name, value in UNDER_HYDRA.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("I_MPI_PIN", "1")
    assert launcher_death.fork_rank() is None
