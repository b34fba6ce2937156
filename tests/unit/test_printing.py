"""The digest of the warnings of other ranks."""

from resnet.watchdog.printing import RankWarnings


def test_a_text_is_printed_once_with_the_ranks_that_logged_it():
    warnings = RankWarnings()
    warnings.add("warning", "slow", "rank 1 on a")
    assert warnings.tick() == []  # The others' may be on their way.
    for _ in range(2):
        warnings.add("warning", "slow", "rank 2 on b")
    assert warnings.tick() == ["warning: rank 1 on a, rank 2 on b: slow"]
    warnings.add("warning", "slow", "rank 3 on c")
    assert [warnings.tick(), warnings.tick(), warnings.take_all()] == [[], [], []]


def test_what_rank_0_has_printed_is_not_printed_again():
    warnings = RankWarnings()
    warnings.add("warning", "early", "rank 1 on a")
    for text in ("early", "late"):
        warnings.add_printed(text)
    warnings.add("warning", "late", "rank 1 on a")
    assert warnings.take_all() == []


def test_many_ranks_and_many_warnings_are_counted():
    warnings = RankWarnings()
    for rank in range(1, 10):
        warnings.add("error", "full", f"rank {rank} on a")
        warnings.add("warning", f"no. {rank}", f"rank {rank} on a")
    lines = warnings.take_all()
    names = ", ".join(f"rank {rank} on a" for rank in range(1, 5))
    assert lines[0] == f"error: {names} and 5 more: full"
    assert lines[1] == "warning: rank 1 on a: no. 1"
    assert lines[-1] == "warning: 2 more warnings of other ranks"
    assert len(lines) == 9
