"""What a start does with the folder of its run."""

import dataclasses
import errno
import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from resnet.base.errors import UserError
from resnet.checkpoint.step_dirs import of_step
from resnet.config.config import CONFIG_FILE, save_config
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from resnet.runtime.run_lock import FILE, Locked, RunLock
from resnet.training import run_folder
from resnet.watchdog import history
from tests.unit.failing_calls import failing
from tests.unit.small_checkpoint import save

LINE = jsonl.encode(jsonl.make_line("eval", 10, 1.0, {"top1": 0.5}))


@pytest.fixture
def logged(tmp_path):
    """The folder of a run that has been evaluated, without a checkpoint."""
    history.append(tmp_path, "start", step=0)
    (tmp_path / CONFIG_FILE).write_text("{}")
    (tmp_path / jsonl.FILE).write_text(LINE)
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "eval.npz").touch()
    return tmp_path


def names_in(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_logged_before_the_first_checkpoint_is_kept(logged, caplog):
    run_folder.set_aside_unsaved(logged)
    kept = {CONFIG_FILE, jsonl.FILE, "predictions"}
    assert names_in(logged) == {CONFIG_FILE, history.FILE, "unsaved-1"}
    assert names_in(logged / "unsaved-1") == kept
    assert names_in(logged / "unsaved-1" / "predictions") == {"eval.npz"}
    assert (logged / "unsaved-1" / jsonl.FILE).read_text() == LINE
    assert f"is in {logged / 'unsaved-1'} now" in caplog.text

    (logged / jsonl.FILE).write_text("")
    run_folder.set_aside_unsaved(logged)  # There is nothing to keep.
    assert "unsaved-2" not in names_in(logged)
    (logged / jsonl.FILE).write_text(LINE)
    run_folder.set_aside_unsaved(logged)
    assert names_in(logged / "unsaved-2") == {CONFIG_FILE, jsonl.FILE}


def test_a_run_that_has_ended_is_not_started_again_without_its_checkpoints(logged):
    history.append(logged, "end", step=10, reason="the training is done")
    before = names_in(logged)
    with pytest.raises(UserError, match="has ended after step 10; there are none"):
        run_folder.set_aside_unsaved(logged)
    assert names_in(logged) == before
    of_step(logged, 10).mkdir(parents=True)
    run_folder.set_aside_unsaved(logged)  # Nothing is set aside beside a checkpoint.
    assert names_in(logged) == {*before, "checkpoints"}


def test_a_saved_run_continues_with_what_it_measured_and_refuses_other_settings(
    tmp_path,
):
    given = {"model_dir": str(tmp_path), "precision": "auto"}
    config = resolve(RECIPES["digits"], given, 1437, ("a", "b"))
    assert run_folder.match_saved_run(config) == {}
    save_config(dataclasses.replace(config, precision="bf16"))
    assert run_folder.match_saved_run(config) == {}  # It has no checkpoint.
    of_step(tmp_path, 10).mkdir(parents=True)
    assert run_folder.match_saved_run(config) == {
        "precision": "bf16",
        "exchange": "auto",
        "initial_weights_sha256": "",
    }
    with pytest.raises(UserError, match=r"\(seed=0, now 1\)"):
        run_folder.match_saved_run(dataclasses.replace(config, seed=1))


def _flip_a_bit(folder: pathlib.Path) -> None:
    path = next(folder.glob("state.data*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")


STOPS = {"stop_at": 0.25, "eval_every": "1step"}


@pytest.mark.parametrize(
    ("step", "results", "changes", "damage", "ends"),
    [
        (10, {"eval": {"top1": 0.25}}, {}, None, True),
        (10, {}, {"mode": "train"}, None, True),
        (10, {}, {}, None, False),  # It is to be evaluated.
        (10, {"eval": {"top1": 0.25}}, {}, _flip_a_bit, False),
        (9, {"eval": {"top1": 0.25}}, {}, None, False),
        (9, {"eval": {"top1": 0.25}}, STOPS, None, True),
    ],
)
def test_a_run_has_ended_if_nothing_is_left_to_do(
    tmp_path, step, results, changes, damage, ends
):
    given = {"model_dir": str(tmp_path), "train_steps": 10, "warmup_steps": 1}
    config = resolve(RECIPES["digits"], {**given, **changes}, 1437, ("a", "b"))
    assert run_folder.describe_end(config, is_evaluated=True) == ""
    folder = save(tmp_path, step, config=dataclasses.asdict(config), **results)
    if damage:
        damage(folder)
    text = run_folder.describe_end(config, config.mode != "train")
    assert bool(text) == ends
    assert ("25.00 %" in text) == (ends and bool(results))


def test_initial_weights_may_change_only_after_a_checkpoint_has_replaced_them(tmp_path):
    weights, model_dir = tmp_path / "weights.npz", tmp_path / "model"
    weights.write_bytes(b"some")
    given = {"model_dir": str(model_dir), "initial_weights": str(weights)}
    config = resolve(RECIPES["digits"], given, 1437, ("a", "b"))
    digest = {"initial_weights_sha256": hashlib.sha256(b"some").hexdigest()}
    assert run_folder.match_saved_run(config) == digest
    save_config(dataclasses.replace(config, **digest))
    assert run_folder.match_saved_run(config) == digest
    weights.write_bytes(b"other")
    with pytest.raises(UserError, match=r"weights.npz must hold the weights that the"):
        run_folder.match_saved_run(config)
    of_step(model_dir, 10).mkdir(parents=True)
    weights.unlink()
    assert run_folder.match_saved_run(config).items() >= digest.items()


def test_a_folder_is_created_with_its_parents(tmp_path):
    folder = tmp_path / "a" / "model"
    run_folder.make(str(folder))
    assert os.listdir(folder) == []
    (tmp_path / "large disk").mkdir()
    (folder / "checkpoints").symlink_to(tmp_path / "large disk")
    run_folder.make(str(folder))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (lambda path: path.symlink_to("gone"), "No such file"),
        (lambda path: path.symlink_to(path.name), "Too many levels"),
        (os.mkfifo, "Not a directory"),
    ],
    ids=["dangling link", "loop", "fifo"],
)
def test_checkpoints_that_cannot_be_a_folder_are_refused(tmp_path, place, reason):
    place(tmp_path / "checkpoints")
    with pytest.raises(UserError, match=f"checkpoints, in which .*: {reason}"):
        run_folder.make(str(tmp_path))


def test_a_name_that_tensorflow_cannot_write_is_refused(tmp_path):
    name = str(tmp_path / "model") + os.fsdecode(b"\xff")
    with pytest.raises(UserError, match=r"must be a name in UTF-8; got .*xff"):
        run_folder.make(name)
    assert os.listdir(tmp_path) == []


def test_a_path_too_long_for_the_files_of_a_run_is_refused(tmp_path):
    parts = ["d" * 250] * 20
    longest = str(tmp_path.joinpath(*parts))[:4080]
    with pytest.raises(UserError, match=r"can be written to; .*File name too long"):
        run_folder.make(longest)
    assert os.listdir(tmp_path) == []
    run_folder.make(str(tmp_path / ("m" * 255)))


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
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
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
    (tmp_path / "model").mkdir()
    lock = RunLock(tmp_path / "model")
    lock.require()
    with monkeypatch.context() as patched:
        if is_stale:
            patched.setattr(pathlib.Path, "stat", failing(errno.ESTALE))
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


def test_a_folder_of_images_is_no_folder_of_a_run(tmp_path):
    image = tmp_path / "cats" / "1.JPEG"
    image.parent.mkdir()
    image.touch()
    with pytest.raises(UserError, match=r"has images, such as .*1\.JPEG"):
        run_folder.make(str(tmp_path))
    (tmp_path / CONFIG_FILE).touch()
    run_folder.make(str(tmp_path))
    with pytest.raises(UserError, match=r"must be a folder; \S*1\.JPEG is a file"):
        run_folder.make(str(image))
