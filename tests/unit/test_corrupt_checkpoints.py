import errno
import hashlib
import io
import json
import os
import pathlib
import threading

import pytest
import tensorflow as tf

from resnet.base.errors import UserError
from resnet.checkpoint import integrity, rank_names, tensors
from resnet.checkpoint.retention import best_step, ends_run, phase_ends
from resnet.checkpoint.step_dirs import saved_steps
from tests.unit.simulated_ranks import on_all_ranks
from tests.unit.small_checkpoint import save

INDEX, DATA = "state.index", "state.data-00000-of-00001"
CONTENTS = "checkpoint.json"


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def halve(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (INDEX, flip),
        (INDEX, halve),
        (INDEX, lambda data: b""),
        (INDEX, None),
        (DATA, flip),
        (DATA, halve),
        (DATA, lambda data: b""),
        (DATA, None),
        (CONTENTS, flip),
        (CONTENTS, halve),
        (CONTENTS, lambda data: b""),
        (CONTENTS, None),
    ],
)
def test_a_damaged_file_is_a_sentence_with_its_path(tmp_path, name, damage):
    folder = save(tmp_path, 3, keep=2)
    file = folder / name
    if damage:
        file.write_bytes(damage(file.read_bytes()))
    else:
        file.unlink()
    with pytest.raises(UserError, match="can't be read") as caught:
        tensors.load(tmp_path, 3)
    assert f"{folder} can't be read: {name}" in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / DATA).write_bytes(b""),
        lambda folder: (folder / DATA).unlink(),
        lambda folder: (folder / CONTENTS).unlink(),
        lambda folder: [file.unlink() for file in folder.iterdir()],
    ],
)
def test_the_one_before_a_damaged_one_is_taken_with_a_warning(tmp_path, caplog, damage):
    for step in (1, 2):
        save(tmp_path, step, number=step)
    folder = save(tmp_path, 3)
    damage(folder)
    found = tensors.load_newest(tmp_path)
    assert (found.step, found.metadata["number"]) == (2, 2)
    assert str(folder) in caplog.text
    assert saved_steps(tmp_path) == [1, 2, 3]
    assert tensors.load_newest(tmp_path, quarantine=True).step == 2
    assert saved_steps(tmp_path) == [1, 2]
    assert (tmp_path / "checkpoints" / "damaged-step-00000003").is_dir()


def test_if_all_are_damaged_nothing_is_begun_anew(tmp_path):
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


def test_a_later_format_is_refused_and_not_taken_for_damage(tmp_path):
    for step in (1, 2):
        folder = save(tmp_path, step)
    change_contents(folder, True, format=99)
    with pytest.raises(UserError, match="has the format 99"):
        tensors.load_newest(tmp_path, quarantine=True)
    assert saved_steps(tmp_path) == [1, 2]


def test_a_bit_that_fell_over_in_the_format_is_damage(tmp_path):
    for step in (1, 2):
        folder = save(tmp_path, step)
    change_contents(folder, False, format=3)
    assert tensors.load_newest(tmp_path).step == 1


@pytest.mark.parametrize("text", ["7", "[]", '"text"', "null", "{}"])
def test_json_of_another_kind_is_damage(tmp_path, text):
    for step in (1, 2):
        folder = save(tmp_path, step)
    (folder / CONTENTS).write_text(text)
    assert tensors.load_newest(tmp_path).step == 1


@pytest.mark.parametrize("name", [CONTENTS, DATA])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_file_server_that_fails_for_a_moment_costs_no_checkpoint(
    tmp_path, monkeypatch, name, number
):
    for step in (1, 2):
        folder = save(tmp_path, step)
    open_file = io.open

    def fail(path, *arguments, **options):
        if str(path) == str(folder / name):
            raise OSError(number, os.strerror(number))
        return open_file(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(io, "open", fail)
        with pytest.raises(UserError, match="can't be read now") as caught:
            tensors.load_newest(tmp_path, quarantine=True)
    assert f"{folder} can't be read now: {name}: {os.strerror(number)}. " in str(
        caught.value
    )
    assert tensors.load_newest(tmp_path).step == 2


def test_a_folder_that_cannot_be_listed_is_not_one_without_checkpoints(
    tmp_path, monkeypatch
):
    def fail(folder):
        raise OSError(errno.EIO, "Input/output error")

    save(tmp_path, 1)
    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(UserError, match="checkpoints can't be read now: Input/output"):
        tensors.load_newest(tmp_path)


def test_whole_files_that_cannot_be_read_again_are_no_damage(tmp_path, monkeypatch):
    def fail(prefix):
        raise tf.errors.UnknownError(None, None, "Input/output error")

    save(tmp_path, 1)
    monkeypatch.setattr(tf.train, "load_checkpoint", fail)
    with pytest.raises(UserError, match="can't be read now: Input/output error"):
        tensors.load_newest(tmp_path, quarantine=True)
    assert saved_steps(tmp_path) == [1]


def test_a_damaged_one_that_cannot_be_renamed_is_warned_of(
    tmp_path, monkeypatch, caplog
):
    def refuse(path, target):
        raise OSError(errno.EROFS, "Read-only file system")

    for step in (1, 2):
        folder = save(tmp_path, step)
    (folder / DATA).unlink()
    monkeypatch.setattr(pathlib.Path, "rename", refuse)
    assert tensors.load_newest(tmp_path, quarantine=True).step == 1
    assert f"{folder} can't be renamed (Read-only file system)" in caplog.text


def test_what_is_damaged_is_neither_best_nor_the_end_of_a_phase(tmp_path):
    folder = save(tmp_path, 1, ends_phase="init", eval={"top1": 0.75})
    save(tmp_path, 2, eval={"top1": 0.5})
    (folder / CONTENTS).write_bytes(b"")
    assert best_step(tmp_path) == 2
    assert phase_ends(tmp_path) == {}
    assert not ends_run(tmp_path, 1, 7, 0.5)


def test_only_rank_0_looks_at_the_files_that_other_ranks_check(tmp_path, monkeypatch):
    folder = save(tmp_path, 1)
    files = [folder / f"{rank_names.prefix(rank, 4)}.index" for rank in range(4)]
    for file in files:
        file.write_bytes(file.name.encode())
    saved = [file for file in folder.iterdir() if file.name != CONTENTS]
    contents = integrity.fingerprints(saved)
    integrity.write_contents(folder, {"step": 1}, contents, has_rank_files=True)
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
