import resource
import sys

import pytest

from resnet.config.command_line import JobSettings
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup


@pytest.fixture
def limit():
    """The limit of open files, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_thousand_record_files_may_stay_open(limit):
    _, hard = limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    most = startup.OPEN_FILES
    expected = most if hard == resource.RLIM_INFINITY else min(hard, most)
    for _ in range(2):
        startup.allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (expected, hard)


def test_what_was_imported_before_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    with startup._hidden(("json", "tabnanny")):
        assert sys.modules["json"].dumps(1) == "1"
        with pytest.raises(ImportError):
            import tabnanny
    import tabnanny

    assert sys.modules["tabnanny"] is tabnanny


class Node:
    """The communicator of a rank whose node has others, which share cores or don't."""

    def __init__(self, share_cores: list[bool]) -> None:
        self._share_cores = share_cores

    def allgather_on_node(self, value):
        cores, _ = value
        return [(cores, shares) for shares in self._share_cores]


@pytest.mark.parametrize(
    ("share_cores", "local_rank", "expected"),
    [
        ([False, False], 1, (2, 3, 6, 7)),
        # A coordinator, a server and two workers, which divide all cores.
        ([True, True, False, False], 0, (0, 1, 2, 3, 4, 5, 6, 7)),
        ([True, True, False, False], 2, (0, 1, 4, 5)),
        ([True, True, False, False], 3, (2, 3, 6, 7)),
        ([False, True], 0, (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_ranks_that_compute_divide_the_cores(
    monkeypatch, share_cores, local_rank, expected
):
    cores = [(0, 4), (1, 5), (2, 6), (3, 7)]  # With two threads each.
    monkeypatch.setattr(startup.physical_cores, "group_by_core", lambda cpus: cores)
    monkeypatch.setattr(startup.placement, "apply", lambda threads, variables: None)
    process = ProcessInfo(local_rank, len(share_cores), local_rank, len(share_cores))
    threads = startup.settle_placement(
        process, Node(share_cores), JobSettings(), share_cores[local_rank]
    )
    assert tuple(sorted(threads.cpus)) == expected
    assert threads.num_intra_threads == len(expected) // 2
