import os
from pathlib import Path

from resnet.checkpoint import restore
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo


def test_a_folder_that_a_host_remembers_as_missing_is_found(tmp_path, monkeypatch):
    """As on NFS, until the folder above it is listed."""
    model_dir = tmp_path / "model"
    listed: list[Path] = []
    exists, listdir = Path.exists, os.listdir

    def find(path: Path) -> bool:
        return path.parent in listed and exists(path)

    def list_folder(folder: Path) -> list[str]:
        if folder == model_dir and tmp_path not in listed:
            raise FileNotFoundError(folder)
        listed.append(folder)
        return listdir(folder)

    monkeypatch.setattr(Path, "exists", find)
    monkeypatch.setattr(os, "listdir", list_folder)
    monkeypatch.setattr(restore, "_POLL_SECONDS", 0.01)
    restore.check_is_shared(model_dir, Communicator(ProcessInfo()), 10.0)
    assert listed == [tmp_path, model_dir]
    monkeypatch.undo()
    assert list(model_dir.iterdir()) == []
