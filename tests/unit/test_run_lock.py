import errno
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from resnet.base.errors import UserError
from resnet.runtime.run_lock import FILE, Locked, RunLock

HOLD = """
import pathlib, sys, time
from resnet.runtime.run_lock import RunLock
lock = RunLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_one_job_at_a_time_holds_the_lock_until_it_ends_however_it_ends(
    tmp_path, holder
):
    half_written = tmp_path / ".config.json.01234567.partial"
    half_written.touch()
    sentence = rf"is locked by another job \(process {holder.pid} on .*, since 20"
    with pytest.raises(Locked, match=sentence):
        RunLock(tmp_path)
    assert half_written.exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / FILE).exists()
    RunLock(tmp_path).release()
    assert not half_written.exists()


def test_only_what_a_killed_job_has_half_written_goes_and_the_released_lock(tmp_path):
    names = ("config.json", "metrics.jsonl", "diverged-step-00000007.json")
    others = [".eval.json.01234567.partial", "config.json", "metrics.jsonl"]
    for name in (*others, *(f".{name}.01234567.partial" for name in names)):
        (tmp_path / name).touch()
    lock = RunLock(tmp_path)
    assert str(os.getpid()) in (tmp_path / FILE).read_text()
    lock.release()
    lock.release()
    assert sorted(os.listdir(tmp_path)) == others


def test_a_lock_on_a_file_that_was_just_removed_is_none(tmp_path, monkeypatch):
    first = RunLock(tmp_path)
    lock = fcntl.flock

    def lock_late(descriptor, operation):
        """Between opening and locking, the holder lets go."""
        first.release()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    second = RunLock(tmp_path)
    assert (tmp_path / FILE).exists()
    monkeypatch.undo()
    with pytest.raises(UserError):
        RunLock(tmp_path)
    second.release()


def test_a_folder_in_the_place_of_the_lock_is_a_sentence(tmp_path):
    (tmp_path / FILE).mkdir()
    with pytest.raises(UserError, match=r"lock can't be opened: Is a dir") as caught:
        RunLock(tmp_path)
    assert not isinstance(caught.value, Locked)


def test_a_file_system_without_locks_is_worked_on_with_a_warning(
    tmp_path, monkeypatch, caplog
):
    def no_lock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    RunLock(tmp_path).release()
    assert "supports no locks" in caplog.text


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_folder_that_was_moved_is_refused_and_its_new_place_named(
    tmp_path, is_replaced
):
    (tmp_path / "model").mkdir()
    lock = RunLock(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    if is_replaced:
        (tmp_path / "model").mkdir()
        other = RunLock(tmp_path / "model")
    with pytest.raises(UserError, match=rf"it was moved to {tmp_path}/elsewhere\."):
        lock.require()
    lock.release()
    if is_replaced:  # The other job's lock stays.
        assert (tmp_path / "model" / FILE).exists()
        other.require()
        other.release()


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_lock_whose_file_was_removed_is_taken_again(
    tmp_path, monkeypatch, caplog, is_stale
):
    lock = RunLock(tmp_path)
    (tmp_path / FILE).unlink()
    with monkeypatch.context() as patched:
        if is_stale:
            fail_for(patched, lock._descriptor, errno.ESTALE)
        lock.require()
    assert "is locked again" in caplog.text
    with pytest.raises(Locked):
        RunLock(tmp_path)
    (tmp_path / FILE).unlink()
    second = RunLock(tmp_path)
    with pytest.raises(Locked):
        lock.require()
    lock.release()
    second.release()


def fail_for(monkeypatch, descriptor: int, number: int) -> None:
    """Has the file system give an error for an open file."""
    fstat = os.fstat

    def fail(opened):
        if opened == descriptor:
            raise OSError(number, os.strerror(number))
        return fstat(opened)

    monkeypatch.setattr(os, "fstat", fail)


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_folder_that_was_removed_is_refused(tmp_path, monkeypatch, is_stale):
    def fail(path, **options):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    (tmp_path / "model").mkdir()
    lock = RunLock(tmp_path / "model")
    lock.require()
    with monkeypatch.context() as patched:
        if is_stale:
            patched.setattr(pathlib.Path, "stat", fail)
        else:
            shutil.rmtree(tmp_path / "model")
        with pytest.raises(UserError, match=r"it was removed or replaced\."):
            lock.require()
    lock.release()


def test_a_run_continues_while_its_lock_cannot_be_checked(
    tmp_path, monkeypatch, caplog
):
    lock = RunLock(tmp_path)
    with monkeypatch.context() as patched:
        fail_for(patched, lock._descriptor, errno.EIO)
        lock.require()
    assert f"whether {tmp_path} is still locked (Input/output error)" in caplog.text
    lock.require()
    lock.release()


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [(os, "close", errno.ENOSPC), (pathlib.Path, "unlink", errno.EROFS)],
)
def test_a_lock_is_released_whatever_the_disk_says(
    tmp_path, monkeypatch, module, name, number
):
    def fail(*arguments, **options):
        if module is os:
            close(*arguments)
        raise OSError(number, os.strerror(number))

    lock, close = RunLock(tmp_path), os.close
    with monkeypatch.context() as patched:
        patched.setattr(module, name, fail)
        lock.release()
    RunLock(tmp_path).release()
