"""Writers of several ranks, as threads of this process, write the same steps."""

import random
import threading
import time

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.checkpoint import integrity
from resnet.checkpoint import tensors as checkpoints
from resnet.checkpoint.async_writer import CheckpointWriter
from resnet.checkpoint.rank_files import RankFiles
from resnet.checkpoint.step_dirs import saved_steps
from resnet.checkpoint.tensors import Checkpoint

WAIT_SECONDS = 30


class Ranks:
    """Stands for `BackgroundCommunicator`: ranks that meet in memory."""

    def __init__(self, rank: int, meeting: "Meeting") -> None:
        self.rank = rank
        self.num_ranks = meeting.barrier.parties
        self._meeting = meeting

    def allgather(self, value):
        meeting = self._meeting
        meeting.values[self.rank] = value
        meeting.barrier.wait(WAIT_SECONDS)
        values = list(meeting.values)
        meeting.barrier.wait(WAIT_SECONDS)
        return values


class Meeting:
    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks)
        self.values = [None] * num_ranks


@pytest.fixture
def run_ranks(tmp_path):
    """Returns `run(num_ranks, act)`: runs `act(rank, writer)` on each rank."""

    def run(num_ranks: int, act) -> list[CheckpointWriter]:
        meeting = Meeting(num_ranks)
        writers = [
            CheckpointWriter(tmp_path, 100, 0.01, Ranks(rank, meeting))
            for rank in range(num_ranks)
        ]
        threads = [
            threading.Thread(target=act, args=(rank, writer))
            for rank, writer in enumerate(writers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
        return writers

    return run


def snapshot(step: int, rank: int) -> Checkpoint:
    tensors = {"weights": np.full(10, step, np.float32)} if rank == 0 else {}
    return Checkpoint(step, tensors, {}, {"own": np.int64([step, rank])})


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_of_any_speed_write_the_same_steps_and_the_last(
    run_ranks, tmp_path, num_ranks, seed, monkeypatch
):
    # So that the files of all steps can be compared, not only those of the last one.
    monkeypatch.setattr(integrity, "drop_files", lambda folder, is_dropped: None)

    def submit_all(rank: int, writer: CheckpointWriter) -> None:
        pauses = random.Random(seed * 10 + rank)
        for step in range(1, 31):
            writer.submit(snapshot(step, rank))
            time.sleep(pauses.choice([0, 0, 0.001, 0.02]))
            while step == 15 and not saved_steps(tmp_path):  # On a busy machine.
                time.sleep(0.001)
        writer.finish()

    run_ranks(num_ranks, submit_all)
    steps = saved_steps(tmp_path)
    assert steps[-1] == 30
    assert 1 < len(steps) <= 30
    for step in steps:
        files = RankFiles(checkpoints.of_step(tmp_path, step))
        assert files.num_ranks == num_ranks
        owners = [files.read(rank)["own"].tolist() for rank in range(num_ranks)]
        assert owners == [[step, rank] for rank in range(num_ranks)]


def test_a_rank_that_always_fails_is_named_on_all_ranks(
    run_ranks, tmp_path, monkeypatch, caplog
):
    write = checkpoints._write_tensors

    def write_or_fail(prefix, tensors):
        if prefix.name.startswith("rank-00001"):
            raise OSError(28, "No space left on device")
        return write(prefix, tensors)

    monkeypatch.setattr(checkpoints, "_write_tensors", write_or_fail)
    sentences = {}

    def submit_one(rank: int, writer: CheckpointWriter) -> None:
        writer.submit(snapshot(1, rank))
        try:
            writer.finish()
        except UserError as error:
            sentences[rank] = str(error)

    run_ranks(3, submit_one)
    for rank in (0, 2):
        assert "can't be written: rank 1 on " in sentences[rank]
    assert "No space left" in sentences[1]
    assert saved_steps(tmp_path) == []
    assert not list((tmp_path / "checkpoints").iterdir())
    # Rank 0 alone says so, each time.
    assert caplog.text.count("step 1 can't be written") == 3


def test_a_rank_that_fails_does_not_wait_for_a_snapshot_that_never_comes(run_ranks):
    def act(rank: int, writer: CheckpointWriter) -> None:
        writer.submit(snapshot(1, rank))
        writer.close()

    run_ranks(2, act)
    alone = CheckpointWriter(None, 1, ranks=OthersAreAhead())
    alone.submit(snapshot(1, 0))
    alone.close()


class OthersAreAhead:
    """Ranks of which another one has a snapshot that this one was never given."""

    rank = 0
    num_ranks = 2

    def allgather(self, value):
        return [value, value + 1]
