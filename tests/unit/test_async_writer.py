import threading
from types import SimpleNamespace

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.checkpoint import async_writer, tensors
from resnet.checkpoint.async_writer import CheckpointWriter
from resnet.checkpoint.step_dirs import saved_steps
from resnet.checkpoint.tensors import Checkpoint


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


def test_what_is_submitted_is_written_without_waiting_for_it(tmp_path, disk):
    writer = CheckpointWriter(tmp_path, keep=5)
    writer.submit(snapshot(1))  # Comes back although the disk doesn't move.
    assert saved_steps(tmp_path) == []
    disk.go.set()
    writer.finish()
    assert saved_steps(tmp_path) == [1]
    assert tensors.load(tmp_path, 1).tensors["weights"][0] == 1


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


def test_the_last_one_is_tried_several_times(tmp_path, disk):
    writer = CheckpointWriter(tmp_path, keep=5, retry_seconds=0.01)
    disk.failures = async_writer.LAST_TRIES - 1
    disk.go.set()
    writer.submit(snapshot(1))
    writer.finish()
    assert saved_steps(tmp_path) == [1]


def test_whether_the_last_one_is_written_can_be_asked(tmp_path, disk):
    writer = CheckpointWriter(tmp_path, keep=5, retry_seconds=0.01)
    disk.failures = async_writer.LAST_TRIES + 1
    disk.go.set()
    writer.submit(snapshot(1))
    assert not writer.try_to_finish()
    writer.submit(snapshot(2))
    assert writer.try_to_finish()
    assert saved_steps(tmp_path) == [2]


def test_a_disk_that_stays_full_is_an_error_at_the_end(tmp_path, disk):
    writer = CheckpointWriter(tmp_path, keep=5, retry_seconds=0.01)
    disk.failures = async_writer.LAST_TRIES
    disk.go.set()
    writer.submit(snapshot(1))
    with pytest.raises(UserError, match=r"can't be written: .*No space left"):
        writer.finish()
    assert saved_steps(tmp_path) == []


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


def test_with_nothing_to_write_there_is_nothing_to_wait_for(tmp_path):
    CheckpointWriter(tmp_path, keep=5).finish()


def test_closing_waits_for_what_is_being_written_and_says_no_more(tmp_path, disk):
    writer = CheckpointWriter(tmp_path, keep=5)
    writer.submit(snapshot(1))
    threading.Timer(0.2, disk.go.set).start()
    writer.close()
    assert saved_steps(tmp_path) == [1]
    disk.failures = 1
    writer.submit(snapshot(2))
    writer.close()
    assert saved_steps(tmp_path) == [1]
