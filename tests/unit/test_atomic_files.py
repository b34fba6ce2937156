import errno
import os
import stat

import pytest

from resnet.base import atomic_files


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    atomic_files.atomic_write_bytes(path, b"old")

    def write_and_fail() -> None:
        with atomic_files.atomic_file(path) as file:
            file.write(b"new")
            file.flush()
            assert path.read_bytes() == b"old"
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write_and_fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path):
    others = [".hidden", ".x.crdownload.partial", "x.partial"]
    for name in (".x.01234567.partial", ".y.01234567.partial", *others):
        (tmp_path / name).touch()
    atomic_files.remove_leftovers(tmp_path, "x")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, ".y.01234567.partial"])
    atomic_files.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == others


def test_a_write_that_fails_names_its_file(tmp_path):
    error = r"No space left on device: '.*/file'"
    file = atomic_files.atomic_file(tmp_path / "file")
    with pytest.raises(OSError, match=error), file:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("missing", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_only_folders_may_lack_fsync(monkeypatch, tmp_path, missing):
    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if error := errors["folder" if is_folder else "file"]:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fsync)
    errors = {"file": 0, "folder": missing}
    atomic_files.atomic_write_bytes(tmp_path / "file", b"content")
    for refused in ({"file": missing}, {"file": 0, "folder": errno.EIO}):
        errors.update(refused)
        with pytest.raises(OSError, match="Errno"):
            atomic_files.atomic_write_bytes(tmp_path / "file", b"content")


@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_folder_without_a_name_is_no_file(path):
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        atomic_files.atomic_write_bytes(path, b"")
