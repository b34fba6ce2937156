"""Waiting for the checkpoints of a run that another job writes."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from resnet.checkpoint import step_dirs
from resnet.checkpoint.watch import CheckpointWatch
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.hardware.placement import ProcessInfo


def make(model_dir: Path, step: int) -> Path:
    folder = step_dirs.of_step(model_dir, step)
    folder.mkdir(parents=True)
    return folder


def make_again(folder: Path) -> None:
    """Replaces a checkpoint by one that was written at another time."""
    folder.rmdir()
    folder.mkdir()
    os.utime(folder, ns=(5, 5))


def has_ended() -> bool:
    return True


def watch_of(
    model_dir: Path, minutes: float = 1.0, communicator=None
) -> CheckpointWatch:
    signals = SimpleNamespace(seen="")
    communicator = communicator or Communicator(ProcessInfo())
    return CheckpointWatch(model_dir, minutes, communicator, signals, 0.01)


def test_existing_ones_come_oldest_first_until_each_is_evaluated(tmp_path):
    for name in (".step-00000005.unfinished", "damaged-step-00000006"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    watch = watch_of(tmp_path)
    assert watch.next_step(has_ended) is None
    for step in (30, 10, 20):
        make(tmp_path, step)
    found = []
    while (step := watch.next_step(has_ended)) is not None:
        assert watch.next_step() == step
        found.append(step)
        watch.evaluated(step)
    assert found == [10, 20, 30]


def test_it_waits_for_the_next_one_and_says_so_once(tmp_path, capsys):
    model_dir = tmp_path / "not yet"
    watch = watch_of(model_dir)
    writer = threading.Timer(0.05, make, (model_dir, 10))
    writer.start()
    assert watch.next_step() == 10
    writer.join()
    expected = f"waiting for a checkpoint in {model_dir}, up to 1 minutes\n"
    assert capsys.readouterr().out == expected


def test_the_time_limit_is_that_of_waiting_alone(tmp_path):
    watch = watch_of(tmp_path, minutes=0.002)  # 0.12 s.
    make(tmp_path, 10)
    assert watch.next_step() == 10
    time.sleep(0.15)  # Evaluating.
    watch.evaluated(10)
    writer = threading.Timer(0.02, make, (tmp_path, 20))
    writer.start()
    assert watch.next_step() == 20
    writer.join()
    watch.evaluated(20)
    with pytest.raises(AgreedFailure, match=r"for 0.002 minutes.*--watch_minutes"):
        watch.next_step()


def test_a_damaged_one_is_skipped_until_it_is_written_again(tmp_path, caplog):
    folder = make(tmp_path, 10)
    watch = watch_of(tmp_path)
    assert watch.next_step() == 10
    make_again(folder)  # While it was read.
    watch.skip(10, "state.index is gone")
    assert "state.index" not in caplog.text
    assert watch.next_step() == 10
    watch.skip(10, "state.index has 3 bytes")
    assert "step 10: state.index has 3 bytes" in caplog.text
    assert watch.next_step(has_ended) is None
    os.utime(folder, ns=(6, 6))
    assert watch.next_step() == 10


def test_other_ranks_follow_rank_0(tmp_path):
    class SecondOfTwo(Communicator):
        """Hears of a checkpoint that only rank 0 sees."""

        def allgather(self, value):
            assert value[0] is None  # It hasn't looked.
            return [(40, False, False, False), value]

    make(tmp_path, 10)
    communicator = SecondOfTwo(ProcessInfo(rank=1, num_ranks=2))
    assert watch_of(tmp_path, communicator=communicator).next_step() == 40
