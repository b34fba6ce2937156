"""Warnings of hosts other than that of rank 0."""

import logging

import pytest
from absl import logging as absl_logging

from resnet.runtime import host_warnings
from tests.unit.one_of_ranks import OneOfRanks

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
