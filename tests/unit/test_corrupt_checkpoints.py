"""Damaged, renamed, copied and replaced checkpoints: an intact one is taken."""

import errno
import hashlib
import io
import json
import os
import pathlib
import shutil
import threading
from unittest import mock

import pytest
import tensorflow as tf

from resnet.base.errors import UserError
from resnet.checkpoint import integrity, step_dirs, tensors
from resnet.checkpoint.step_dirs import of_step, saved_steps
from tests.unit.failing_calls import failing
from tests.unit.simulated_ranks import on_all_ranks
from tests.unit.small_checkpoint import save

INDEX, DATA = "state.index", "state.data-00000-of-00001"
CONTENTS = "checkpoint.json"


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def save_two(model_dir: pathlib.Path) -> pathlib.Path:
    """Saves steps 1 and 2; returns the folder of the second."""
    save(model_dir, 1)
    return save(model_dir, 2)


@pytest.mark.parametrize("name", [INDEX, DATA, CONTENTS])
@pytest.mark.parametrize(
    "damage",
    [flip, lambda data: data[: len(data) // 2], lambda data: b"", None],
    ids=["flip", "halve", "empty", "remove"],
)
def test_the_one_before_a_damaged_one_is_taken_with_a_warning(
    tmp_path, caplog, name, damage
):
    folder = save_two(tmp_path)
    file = folder / name
    if damage:
        file.write_bytes(damage(file.read_bytes()))
    else:
        file.unlink()
    assert tensors.load_newest(tmp_path).step == 1
    assert f"{folder} can't be read: {name}" in caplog.text
    assert saved_steps(tmp_path) == [1, 2]
    assert tensors.load_newest(tmp_path, quarantine=True).step == 1
    assert saved_steps(tmp_path) == [1]
    assert (tmp_path / "checkpoints" / "damaged-step-00000002").is_dir()


def test_if_all_are_damaged_no_run_is_started(tmp_path):
    for step in (1, 2):
        (save(tmp_path, step) / DATA).write_bytes(b"")
    with pytest.raises(UserError, match=r"all 2 checkpoints in .* are corrupt\. "):
        tensors.load_newest(tmp_path, quarantine=True)
    assert saved_steps(tmp_path) == [1, 2]


def change_contents(folder, digest: bool, **changes) -> None:
    contents = json.loads((folder / CONTENTS).read_text())
    written = contents.pop("sha256")
    contents |= changes
    if digest:
        text = json.dumps(contents, sort_keys=True)
        written = hashlib.sha256(text.encode()).hexdigest()
    (folder / CONTENTS).write_text(json.dumps({**contents, "sha256": written}))


def test_another_format_is_refused_and_not_taken_for_damage(tmp_path):
    change_contents(save_two(tmp_path), True, format=99)
    with pytest.raises(UserError, match="has the format 99"):
        tensors.load_newest(tmp_path, quarantine=True)
    assert saved_steps(tmp_path) == [1, 2]


def test_a_flipped_bit_in_the_format_is_damage(tmp_path):
    change_contents(save_two(tmp_path), False, format=3)
    assert tensors.load_newest(tmp_path).step == 1


@pytest.mark.parametrize("name", [CONTENTS, DATA])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_file_server_that_fails_for_a_moment_costs_no_checkpoint(
    tmp_path, monkeypatch, name, number
):
    folder = save_two(tmp_path)
    open_file = io.open

    def fail(path, *arguments, **options):
        if str(path) == str(folder / name):
            raise OSError(number, os.strerror(number))
        return open_file(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(io, "open", fail)
        reason = f"{name}: {os.strerror(number)}"
        with pytest.raises(UserError, match=f"can't be read now: {reason}"):
            tensors.load_newest(tmp_path, quarantine=True)
    assert tensors.load_newest(tmp_path).step == 2


def test_a_folder_that_cannot_be_listed_is_not_one_without_checkpoints(
    tmp_path, monkeypatch
):
    save(tmp_path, 1)
    monkeypatch.setattr(os, "listdir", failing(errno.EIO))
    with pytest.raises(UserError, match="checkpoints can't be read now: Input/output"):
        tensors.load_newest(tmp_path)


def test_intact_files_that_cannot_be_read_again_are_no_damage(tmp_path, monkeypatch):
    save(tmp_path, 1)
    error = tf.errors.UnknownError(None, None, "Input/output error")
    monkeypatch.setattr(tf.train, "load_checkpoint", mock.Mock(side_effect=error))
    with pytest.raises(UserError, match="can't be read now: Input/output error"):
        tensors.load_newest(tmp_path, quarantine=True)
    assert saved_steps(tmp_path) == [1]


def test_a_damaged_one_that_cannot_be_renamed_is_warned_of(
    tmp_path, monkeypatch, caplog
):
    folder = save_two(tmp_path)
    (folder / DATA).unlink()
    monkeypatch.setattr(pathlib.Path, "rename", failing(errno.EROFS))
    assert tensors.load_newest(tmp_path, quarantine=True).step == 1
    assert f"{folder} can't be renamed (Read-only file system)" in caplog.text


def test_only_rank_0_looks_at_the_files_that_other_ranks_check(tmp_path, monkeypatch):
    folder = save(tmp_path, 1)
    files = [folder / f"{step_dirs.rank_prefix(rank, 4)}.index" for rank in range(4)]
    for file in files:
        file.write_bytes(file.name.encode())
    saved = [file for file in folder.iterdir() if file.name != CONTENTS]
    integrity.write_contents(folder, {"step": 1}, integrity.fingerprints(saved))
    this = threading.local()
    looked: list[list[str]] = [[], []]
    stat = pathlib.Path.stat

    def note(path, **options):
        if path in files:
            looked[this.rank].append(path.name)
        return stat(path, **options)

    def load(communicator, place):
        this.rank = communicator.rank
        return tensors.load_newest_on_ranks(tmp_path, communicator)

    monkeypatch.setattr(pathlib.Path, "stat", note)
    (loaded, nothing), _ = on_all_ranks(load, 2)
    assert (loaded.step, nothing) == (1, None)
    assert looked == [[file.name for file in files], []]


def test_the_step_inside_a_folder_decides_not_its_name(tmp_path, caplog):
    save(tmp_path, 40)
    save(tmp_path, 42).rename(of_step(tmp_path, 80))
    assert tensors.load_newest(tmp_path, quarantine=True).step == 40
    assert "it holds step 42: the folder was renamed or copied." in caplog.text
    assert saved_steps(tmp_path) == [40]
    assert (tmp_path / "checkpoints" / "damaged-step-00000080").is_dir()


@pytest.mark.parametrize("is_same_step", [False, True])
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path, monkeypatch, caplog, is_same_step
):
    save(tmp_path, 1)
    load = tensors.load
    replaced = []

    def load_late(model_dir, step):
        if not replaced:
            replaced.append(step)
            shutil.rmtree(of_step(tmp_path, 1))
            save(tmp_path, 1 if is_same_step else 2)
            raise integrity.CorruptCheckpoint(of_step(tmp_path, 1), "half of it")
        return load(model_dir, step)

    monkeypatch.setattr(tensors, "load", load_late)
    assert tensors.load_newest(tmp_path).step == (1 if is_same_step else 2)
    assert caplog.text == ""


def test_checkpoints_that_are_always_replaced_are_refused(tmp_path, monkeypatch):
    step = iter(range(1, 1000))
    save(tmp_path, next(step))

    def load_late(model_dir, old):
        shutil.rmtree(of_step(tmp_path, old))
        of_step(tmp_path, next(step)).mkdir()
        raise integrity.CorruptCheckpoint(of_step(tmp_path, old), "half of it")

    monkeypatch.setattr(tensors, "load", load_late)
    with pytest.raises(UserError, match="are replaced faster than they can be read"):
        tensors.load_newest(tmp_path)
