"""Which hosts are measured with each other, and when."""

from hypothesis import given
from hypothesis import strategies as st

from resnet.distributed import links


@given(st.integers(0, 40))
def test_each_host_is_measured_with_its_two_neighbors_one_at_a_time(number):
    ranks = [3 * index for index in range(number)]
    rounds = links.rounds(ranks)
    for pairs in rounds:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))
    pairs = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs))
    ring = [frozenset((ranks[i - 1], ranks[i])) for i in range(number)]
    expected = set(ring) if number > 1 else set()
    assert set(pairs) == expected
    assert len(rounds) <= 3
