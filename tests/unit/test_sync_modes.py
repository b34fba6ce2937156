"""The worker that the comparison of synchronous and asynchronous training slows."""

import types

import pytest

from eval import measuring
from eval.lab import sync_modes
from resnet.base.errors import UserError

PROGRAM = str(measuring.TRAINING)


class Process:
    """A process of a job, as psutil describes it."""

    def __init__(self, cmdline: list[str], **environ: object) -> None:
        self._cmdline = cmdline
        self._environ = {name: str(value) for name, value in environ.items()}

    def cmdline(self) -> list[str]:
        return self._cmdline

    def environ(self) -> dict[str, str]:
        return self._environ


def hydra(rank: int) -> dict[str, int]:
    return {
        "PMI_RANK": rank,
        "PMI_SIZE": 2,
        "MPI_LOCALRANKID": rank,
        "MPI_LOCALNRANKS": 2,
    }


def open_mpi(rank: int) -> dict[str, int]:
    start = "OMPI_COMM_WORLD"
    return {
        f"{start}_RANK": rank,
        f"{start}_SIZE": 2,
        f"{start}_LOCAL_RANK": rank,
        f"{start}_LOCAL_SIZE": 2,
    }


@pytest.fixture
def processes(monkeypatch) -> list[Process]:
    """Returns the list of the job's processes, to be filled."""
    found: list[Process] = []
    job = types.SimpleNamespace(children=lambda recursive: found)
    monkeypatch.setattr(sync_modes.psutil, "Process", lambda pid: job)
    return found


@pytest.mark.parametrize("launcher", [hydra, open_mpi])
def test_the_last_rank_is_found_under_each_launcher(processes, launcher):
    for rank in (0, 1):
        processes.append(Process(["watchdog"], **launcher(rank)))
        processes.extend(Process(["python", PROGRAM], **launcher(rank)) for _ in "12")
    job = types.SimpleNamespace(pid=1)
    assert sync_modes.last_worker(job, "bsp", 2) is processes[-1]


@pytest.mark.parametrize("mode", ["bsp", "async"])
def test_a_worker_that_is_not_found_is_one_sentence(processes, mode):
    processes.append(Process(["python", PROGRAM]))
    with pytest.raises(UserError, match="worker 1 was not found"):
        sync_modes.last_worker(types.SimpleNamespace(pid=1), mode, 2)
