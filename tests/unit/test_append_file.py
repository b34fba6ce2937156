import errno
import os

from resnet.metrics.append_file import AppendFile


class Disk:
    """A file of which only so many bytes have room."""

    def __init__(self, file, room: int, closes: bool = True) -> None:
        self.file = file
        self.room = room
        self.closes = closes

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        num_bytes = self.file.write(data[: self.room])
        self.room -= num_bytes
        return num_bytes

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()
        if not self.closes:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_lines_are_appended_at_once(tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    file = AppendFile(path)
    file.write("new\n")
    assert path.read_text() == "old\nnew\n"
    file.close()


def test_what_a_full_disk_refuses_comes_later_and_in_order(tmp_path, caplog):
    path = tmp_path / "log"
    file = AppendFile(path)
    file._file = disk = Disk(file._file, 6)
    for line in ("1234\n", "5678\n", "90\n"):
        file.write(line)
    assert path.read_text() == "1234\n5"
    assert caplog.text.count("can't be written (No space left on device)") == 1
    disk.room = 100
    file.close()
    assert path.read_text() == "1234\n5678\n90\n"


def test_each_time_that_it_fills_up_is_said(tmp_path, caplog):
    file = AppendFile(tmp_path / "log")
    file._file = disk = Disk(file._file, 0)
    file.write("1\n")
    disk.room = 2
    file.write("")
    file.write("2\n")
    assert caplog.text.count("can't be written") == 2
    file._file = disk.file
    file.close()


def test_all_lines_are_on_disk_after_a_sync(tmp_path, monkeypatch):
    path = tmp_path / "log"
    file = AppendFile(path)
    file._file = disk = Disk(file._file, 0)
    file.write("1\n")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_text()))
    disk.room = 100
    file.sync()
    file.close()
    assert synced == ["1\n"]


def test_a_disk_that_cannot_sync_ends_no_run_and_is_named(
    tmp_path, monkeypatch, caplog
):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    file = AppendFile(tmp_path / "log")
    file.write("1\n")
    monkeypatch.setattr(os, "fsync", fail)
    file.sync()
    file.close()
    assert (
        f"{tmp_path / 'log'} can't be written (Input/output error). Its last lines may"
        " be lost."
    ) in caplog.text
    assert (tmp_path / "log").read_text() == "1\n"


def test_a_disk_that_is_full_at_the_close_ends_no_run_and_is_named(tmp_path, caplog):
    file = AppendFile(tmp_path / "log")
    file._file = Disk(file._file, 100, closes=False)
    file.write("1\n")
    file.close()
    assert f"{tmp_path / 'log'} can't be written (Disk quota exceeded)" in caplog.text
