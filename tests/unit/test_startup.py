"""Warnings of hosts other than that of rank 0."""

import logging
import re
import resource
import sys

import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from resnet.base import cli, limits
from resnet.config.command_line import JobSettings
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import host_warnings, startup, versions
from tests.unit.one_of_ranks import OneOfRanks


@pytest.fixture
def limit():
    """The limit of open files, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_thousand_record_files_may_stay_open(limit):
    _, hard = limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    most = limits.OPEN_FILES
    expected = most if hard == resource.RLIM_INFINITY else min(hard, most)
    for _ in range(2):
        limits.allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (expected, hard)


def test_what_was_imported_before_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    with startup._hidden(("json", "tabnanny")):
        assert sys.modules["json"].dumps(1) == "1"
        with pytest.raises(ImportError):
            import tabnanny
    import tabnanny

    assert sys.modules["tabnanny"] is tabnanny


def test_sums_are_computed_in_the_order_in_which_they_are_written():
    values = np.random.default_rng(0).normal(size=(3, 1000)).astype(np.float32)

    @tf.function
    def total(first, second, third):
        return first + (second + third)

    found = total(*(tf.constant(one) for one in values))
    np.testing.assert_array_equal(found, values[0] + (values[1] + values[2]))


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
    monkeypatch.setattr(startup.placement, "apply", lambda threads, variables: "")
    process = ProcessInfo(local_rank, len(share_cores), local_rank, len(share_cores))
    threads = startup.settle_placement(
        process, Node(share_cores), JobSettings(), share_cores[local_rank]
    )
    assert tuple(sorted(threads.cpus)) == expected
    assert threads.num_intra_threads == len(expected) // 2


@pytest.fixture
def tree(tmp_path):
    for folder in ("resnet", "data_prep"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "code.py").write_text("pass\n")
    (tmp_path / "resnet" / "op.cc").write_text("int x;\n")
    return tmp_path


def test_every_change_of_the_code_changes_its_digest(tree):
    digests = [versions.code_digest(tree)]
    for change in (
        lambda: (tree / "resnet" / "op.cc").write_text("int y;\n"),
        lambda: (tree / "data_prep" / "deep" / "code.py").write_text("pass \n"),
        lambda: (tree / "resnet" / "new.py").write_text(""),
        lambda: (tree / "resnet" / "op.cc").rename(tree / "resnet" / "po.cc"),
    ):
        change()
        digests.append(versions.code_digest(tree))
    assert len(set(digests)) == 5
    (tree / "resnet" / "code.pyc").write_bytes(b"")
    (tree / "notes.py").write_text("")
    assert versions.code_digest(tree) == digests[-1]  # What is no code doesn't matter.


NO_AVX = "this CPU has no avx512f"


@pytest.fixture
def verbosity(request):
    """Has absl log warnings during a test, as on rank 0, or errors only."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(request.param)
    yield
    absl_logging.set_verbosity(before)


def on_rank(level):
    return pytest.mark.parametrize("verbosity", [level], indirect=True)


@pytest.mark.parametrize(
    ("reports", "warnings"),
    [
        (
            [
                ("a", "X", ["both"]),
                ("b", "X", ["both", NO_AVX]),
                ("b", "X", [NO_AVX]),
                ("c", "X", [NO_AVX]),
            ],
            [f"on b, c: {NO_AVX}"],
        ),
        (
            [("a", "Fast", []), ("b", "Fast", []), ("c", "Slow", [])],
            [
                "the hosts have different CPUs, and all wait for the slowest: Fast on"
                " a, b; Slow on c"
            ],
        ),
        (
            [("a", "X", []), *((f"b{i}", "X", [NO_AVX]) for i in range(9))],
            [f"on b0, b1, b2, b3 and 5 more: {NO_AVX}"],
        ),
        ([("a", "X", []), ("b", "X", [])], []),
    ],
)
def test_warnings_and_cpus_of_other_hosts_name_them_once(reports, warnings):
    assert host_warnings.describe(reports) == warnings


class Others(OneOfRanks):
    """Ranks of which the others have reported before."""

    def __init__(self, rank, *others):
        super().__init__(rank, 1 + len(others))
        self.others = others
        self.told = None

    def allgather(self, value):
        self.told = value
        return [value, *self.others]


@on_rank(absl_logging.INFO)
def test_rank_0_logs_what_another_has_found(verbosity, caplog, monkeypatch):
    monkeypatch.setattr(host_warnings.cpu_features, "model_name", lambda: "X")
    ranks = Others(0, ("node7", "X", [NO_AVX, "mine too"]))
    with host_warnings.gathered(ranks):
        absl_logging.warning("mine %s", "too")
    assert [record.getMessage() for record in caplog.records] == [
        "mine too",
        f"on node7: {NO_AVX}",
    ]


@on_rank(absl_logging.ERROR)
def test_another_rank_hands_its_warnings_over_and_prints_errors(verbosity, caplog):
    ranks = Others(1)
    with host_warnings.gathered(ranks):
        absl_logging.warning("slow")
        absl_logging.info("unimportant")
        absl_logging.error("wrong")
    assert ranks.told[2] == ["slow"]
    assert [record.getMessage() for record in caplog.records] == ["wrong"]
    assert absl_logging.get_verbosity() == absl_logging.ERROR
    assert absl_logging.get_absl_logger().propagate


@on_rank(absl_logging.ERROR)
def test_a_rank_that_fails_waits_for_no_other(verbosity):
    ranks = Others(1)
    with pytest.raises(OSError, match="lost"), host_warnings.gathered(ranks):
        raise OSError("lost")
    assert ranks.told is None
    assert not [
        handler
        for handler in absl_logging.get_absl_logger().handlers
        if handler.level == logging.WARNING
    ]


def test_log_lines_are_sentences_with_absls_prefix_only_if_it_is_asked_for(monkeypatch):
    def shown(level: int) -> str:
        record = logging.LogRecord("absl", level, "x.py", 7, "%d left", (3,), None)
        return cli._Sentences().format(record)

    assert shown(logging.INFO) == "3 left"
    assert shown(logging.WARNING) == "warning: 3 left"
    assert shown(logging.ERROR) == "error: 3 left"
    for flag in ("logtostderr", "alsologtostderr"):
        with monkeypatch.context() as patched:
            patched.setattr(cli.flags.FLAGS[flag], "value", True)
            assert re.match(r"I\d{4} .* x.py:7\] 3 left$", shown(logging.INFO))
