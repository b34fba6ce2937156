import os

import pytest

from resnet.base.errors import UserError
from resnet.checkpoint import run_folder


def test_a_folder_is_created_with_its_parents(tmp_path):
    run_folder.make(str(tmp_path / "a" / "model"))
    assert os.listdir(tmp_path / "a" / "model") == []
    run_folder.make(str(tmp_path / "a" / "model"))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (lambda path: path.touch(), "Not a directory"),
        (lambda path: path.symlink_to("gone"), "No such file"),
        (lambda path: path.symlink_to(path.name), "Too many levels"),
        (os.mkfifo, "Not a directory"),
    ],
    ids=["file", "dangling link", "loop", "fifo"],
)
def test_checkpoints_that_cannot_be_a_folder_are_refused(tmp_path, place, reason):
    place(tmp_path / "checkpoints")
    with pytest.raises(UserError, match=f"checkpoints, in which .*: {reason}"):
        run_folder.make(str(tmp_path))


def test_a_link_to_a_folder_of_checkpoints_is_one(tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "checkpoints").symlink_to("large disk")
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
