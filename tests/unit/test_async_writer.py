"""The background writer, alone and with those of other ranks, as threads."""

import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.checkpoint import async_writer, integrity, tensors
from resnet.checkpoint.async_writer import CheckpointWriter
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.checkpoint.tensors import Checkpoint

WAIT_SECONDS = 30


def snapshot(step: int) -> Checkpoint:
    return Checkpoint(step, {"weights": np.full(10, step, np.float32)}, {})


@pytest.fixture
def disk(monkeypatch):
    """What saving does: it waits for `go`, and fails as often as `failures` says."""

    disk = SimpleNamespace(go=threading.Event(), failures=0, seen=[])
    save = tensors.save

    def save_on_it(model_dir, checkpoint, keep, ranks):
        disk.seen.append(checkpoint.step)
        assert disk.go.wait(30)
        if disk.failures:
            disk.failures -= 1
            raise OSError(28, "No space left on device")
        return save(model_dir, checkpoint, keep, ranks)

    monkeypatch.setattr(tensors, "save", save_on_it)
    return disk


def test_a_newer_one_replaces_one_that_waits(tmp_path, disk):
    writer = CheckpointWriter(tmp_path, keep=5)
    writer.submit(snapshot(1))
    while not disk.seen:
        pass
    for step in (2, 3, 4):
        writer.submit(snapshot(step))
    disk.go.set()
    writer.finish()
    assert saved_steps(tmp_path) == [1, 4]


def test_a_full_disk_is_said_and_another_one_wanted_after_a_while(
    tmp_path, disk, caplog, monkeypatch
):
    clock = [100.0]
    monkeypatch.setattr(async_writer.time, "monotonic", lambda: clock[0])
    writer = CheckpointWriter(tmp_path, keep=5, retry_seconds=60)
    disk.failures = 1
    disk.go.set()
    writer.submit(snapshot(1))
    while not caplog.records or writer._thread:
        pass
    assert "step 1 can't be written: [Errno 28] No space left" in caplog.text
    assert not writer.wants_another
    clock[0] += 60
    assert writer.wants_another
    writer.submit(snapshot(2))
    writer.finish()
    assert not writer.wants_another
    assert saved_steps(tmp_path) == [2]


def test_a_disk_that_stays_full_is_an_error_at_the_end(tmp_path, disk, caplog):
    writer = CheckpointWriter(tmp_path, keep=5, retry_seconds=0.01)
    disk.failures = 2 * async_writer.LAST_TRIES
    disk.go.set()
    writer.submit(snapshot(1))
    assert not writer.try_to_finish()
    assert len(caplog.records) == 1
    writer.submit(snapshot(1))
    with pytest.raises(UserError, match=r"can't be written: .*No space left"):
        writer.finish()
    assert saved_steps(tmp_path) == []
    writer.submit(snapshot(2))
    assert writer.try_to_finish()
    assert saved_steps(tmp_path) == [2]


def test_an_error_of_any_kind_is_said_and_not_waited_for(tmp_path, disk, caplog):
    writer = CheckpointWriter(tmp_path, keep=5, retry_seconds=0.01)
    disk.go.set()
    writer.submit(Checkpoint(1, {"weights": np.zeros(3)}, {"fact": object()}))
    with pytest.raises(UserError, match="not JSON serializable"):
        writer.finish()
    assert "step 1 can't be written" in caplog.text
    writer.submit(snapshot(2))
    writer.finish()
    assert saved_steps(tmp_path) == [2]


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


def snapshot_of(step: int, rank: int) -> Checkpoint:
    shared = snapshot(step).tensors if rank == 0 else {}
    return Checkpoint(step, shared, {}, {"own": np.int64([step, rank])})


@pytest.mark.parametrize(("num_ranks", "seed"), [(2, 0), (2, 1), (3, 2)])
def test_ranks_of_any_speed_write_the_same_steps_and_the_last(
    run_ranks, tmp_path, num_ranks, seed, monkeypatch
):
    # So that the files of all steps can be compared, not only those of the last one.
    monkeypatch.setattr(integrity, "drop_rank_files", lambda folder: None)

    def submit_all(rank: int, writer: CheckpointWriter) -> None:
        pauses = random.Random(seed * 10 + rank)
        for step in range(1, 21):
            writer.submit(snapshot_of(step, rank))
            time.sleep(pauses.choice([0, 0, 0.001, 0.01]))
            while step == 10 and not saved_steps(tmp_path):  # On a busy machine.
                time.sleep(0.001)
        writer.finish()

    run_ranks(num_ranks, submit_all)
    steps = saved_steps(tmp_path)
    assert steps[-1] == 20
    assert len(steps) > 1
    for step in steps:
        owners = [
            tensors.load_rank(of_step(tmp_path, step), rank, num_ranks)["own"].tolist()
            for rank in range(num_ranks)
        ]
        assert owners == [[step, rank] for rank in range(num_ranks)]


def test_a_rank_that_always_fails_is_named_on_all_ranks(
    run_ranks, tmp_path, monkeypatch, caplog
):
    write = tensors._write_tensors

    def write_or_fail(prefix, values):
        if prefix.name.startswith("rank-00001"):
            raise OSError(28, "No space left on device")
        return write(prefix, values)

    monkeypatch.setattr(tensors, "_write_tensors", write_or_fail)
    sentences = {}

    def submit_one(rank: int, writer: CheckpointWriter) -> None:
        writer.submit(snapshot_of(1, rank))
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
    # Rank 0 alone says so, once for all tries.
    assert caplog.text.count("step 1 can't be written") == 1


def test_a_rank_that_fails_does_not_wait_for_a_snapshot_that_never_comes(run_ranks):
    def act(rank: int, writer: CheckpointWriter) -> None:
        writer.submit(snapshot_of(1, rank))
        writer.close()

    run_ranks(2, act)
    alone = CheckpointWriter(None, 1, ranks=OthersAreAhead())
    alone.submit(snapshot_of(1, 0))
    alone.close()


class OthersAreAhead:
    """Ranks of which another one has a snapshot that this one was never given."""

    rank = 0
    num_ranks = 2

    def allgather(self, value):
        return [value, value + 1]
