"""The cores and arguments of the peers in PyTorch, which isn't installed here."""

import importlib
import os
import sys
import types
from unittest import mock

import pytest

from resnet.hardware import physical_cores


@pytest.fixture
def peer(monkeypatch):
    """Returns a function that imports a peer with a stand-in for PyTorch."""
    torch = mock.MagicMock()
    torch.nn.Module = object
    for name in ("torch", "torch.nn", "torch._inductor"):
        monkeypatch.setitem(sys.modules, name, torch)
    torch.nn.functional = torch.functional

    def imported(name: str) -> types.ModuleType:
        monkeypatch.delitem(sys.modules, f"eval.lab.{name}", raising=False)
        return importlib.import_module(f"eval.lab.{name}")

    return imported


def test_a_rank_binds_itself_to_whole_cores(peer, monkeypatch):
    torch_resnet = peer("torch_resnet")
    monkeypatch.setattr(
        physical_cores, "usable", lambda: [(0, 4), (2, 6), (1, 5), (3, 7)]
    )
    bound = mock.Mock()
    monkeypatch.setattr(os, "sched_setaffinity", bound)
    torch_resnet.join_ranks(types.SimpleNamespace(rank=1, ranks=2))
    bound.assert_called_once_with(0, {1, 5, 3, 7})
    torch_resnet.torch.set_num_threads.assert_called_once_with(2)


@pytest.mark.parametrize(
    ("name", "ranks", "more"),
    [("torch_resnet", 3, ()), ("torch_airbench94", 0, ("--data_dir=.",))],
)
def test_ranks_without_a_core_are_refused(peer, monkeypatch, capsys, name, ranks, more):
    monkeypatch.setattr(physical_cores, "usable", lambda: [(0, 2), (1, 3)])
    monkeypatch.setattr(sys, "argv", [f"{name}.py", f"--ranks={ranks}", *more])
    module = peer(name)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: --ranks must be from 1 to 2, the number of")
    assert (printed.count("\n"), f"got {ranks}." in printed) == (1, True)
