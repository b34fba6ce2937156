import os
from types import SimpleNamespace

import pytest

from resnet.base.errors import UserError
from resnet.distributed import communicator
from resnet.hardware.placement import ProcessInfo


def test_too_small_a_shared_memory_is_refused_before_mpi_starts(monkeypatch):
    memory = SimpleNamespace(f_blocks=256, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: memory)
    monkeypatch.setattr(communicator.importlib, "import_module", None)
    with pytest.raises(UserError, match=r"at least 20 MiB .* 4 rank.* has 1 MiB"):
        communicator.connect(ProcessInfo(0, 8, 0, 4))
