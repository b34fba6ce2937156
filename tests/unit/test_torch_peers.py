"""The cores and arguments of the peers in PyTorch, which isn't installed here."""

import importlib
import os
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.peers import rank_cores
from resnet.hardware import placement
from resnet.hardware.placement import ProcessInfo


def describe(topology: Path, num_cores: int) -> None:
    """Describes cores of two threads, on two sockets of two NUMA nodes in turn."""
    for cpu in range(2 * num_cores):
        core = cpu % num_cores
        folder = topology / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{core % 2}\n")
        (folder / "core_id").write_text(f"{core // 2}\n")
        (folder / "thread_siblings_list").write_text(f"{core},{core + num_cores}\n")
        (topology / f"cpu{cpu}" / f"node{core % 4}").mkdir()


def test_hyperthreads_of_a_core_belong_to_one_rank(tmp_path):
    describe(tmp_path, 4)
    cores = rank_cores.group_by_core(range(8), tmp_path)
    assert cores == [(0, 4), (2, 6), (1, 5), (3, 7)]
    assert rank_cores.of_rank(1, 2, cores) == [(1, 5), (3, 7)]
    shares = [rank_cores.of_rank(rank, 3, cores) for rank in range(3)]
    assert shares == [[(0, 4)], [(2, 6)], [(1, 5), (3, 7)]]


@pytest.mark.parametrize("cpus", [range(16), (1, 3, 9, 20), (5,)])
def test_cores_are_those_of_training(tmp_path, cpus):
    describe(tmp_path, 8)
    found = rank_cores.group_by_core(cpus, tmp_path)
    assert found == placement.group_by_core(cpus, tmp_path)


@given(st.integers(1, 40), st.data())
def test_ranks_have_the_cores_that_they_have_in_training(num_cores, data):
    num_ranks = data.draw(st.integers(1, num_cores))
    cores = [(number,) for number in range(num_cores)]
    for rank in range(num_ranks):
        process = ProcessInfo(rank, num_ranks, rank, num_ranks)
        expected = placement.cores_of_rank(process, [cores] * num_ranks)
        assert rank_cores.of_rank(rank, num_ranks, cores) == expected


@pytest.fixture
def peer(monkeypatch):
    """Returns a function that imports a peer with a stand-in for PyTorch."""
    torch = mock.MagicMock()
    torch.nn.Module = object
    for name in ("torch", "torch.nn", "torch._inductor"):
        monkeypatch.setitem(sys.modules, name, torch)
    torch.nn.functional = torch.functional

    def imported(name: str) -> types.ModuleType:
        monkeypatch.delitem(sys.modules, f"eval.peers.{name}", raising=False)
        return importlib.import_module(f"eval.peers.{name}")

    return imported


def test_a_rank_binds_itself_to_whole_cores(peer, monkeypatch):
    torch_resnet = peer("torch_resnet")
    monkeypatch.setattr(rank_cores, "usable", lambda: [(0, 4), (2, 6), (1, 5), (3, 7)])
    bound = mock.Mock()
    monkeypatch.setattr(os, "sched_setaffinity", bound)
    torch_resnet.join_ranks(types.SimpleNamespace(rank=1, ranks=2))
    bound.assert_called_once_with(0, {1, 5, 3, 7})
    torch_resnet.torch.set_num_threads.assert_called_once_with(2)


@pytest.mark.parametrize("ranks", ["3", "0"])
@pytest.mark.parametrize(
    ("name", "more"),
    [("torch_resnet", ()), ("torch_airbench94", ("--data_dir=.",))],
)
def test_ranks_without_a_core_are_refused(peer, monkeypatch, capsys, name, more, ranks):
    monkeypatch.setattr(rank_cores, "usable", lambda: [(0, 2), (1, 3)])
    monkeypatch.setattr(sys, "argv", [f"{name}.py", f"--ranks={ranks}", *more])
    module = peer(name)
    given = (None, module.parser_of_steps()) if name == "torch_resnet" else ()
    with pytest.raises(SystemExit) as ended:
        module.main(*given)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: --ranks must be from 1 to 2, the number of")
    assert (printed.count("\n"), f"got {ranks}." in printed) == (1, True)


@pytest.mark.parametrize(
    "flag",
    ["--infer", "--compile", "--contiguous", "--average_gradients", "--warmup_steps=1"],
)
def test_convolutions_refuse_flags_without_an_effect(peer, monkeypatch, capsys, flag):
    convolutions = peer("torch_convolutions")
    monkeypatch.setattr(sys, "argv", ["torch_convolutions.py", "--rank=0", flag])
    monkeypatch.setattr(convolutions, "run_rank", lambda args: {})
    with pytest.raises(SystemExit) as ended:
        convolutions.main()
    assert ended.value.code == 2
    assert f"unrecognized arguments: {flag}" in capsys.readouterr().err
