"""Which steps are audited, and by which rank."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resnet.training.audit import Place, auditors, due_steps

PLACES = st.lists(st.builds(Place, st.sampled_from("abcd"), st.sampled_from("xy")))


@given(st.integers(0, 2**40), st.integers(1, 50), st.integers(0, 200), st.data())
def test_one_of_each_so_many_steps_is_due(seed, every, first, data):
    end = data.draw(st.integers(first, 300))
    steps = due_steps(seed, every, first, end)
    of_all = due_steps(seed, every, 0, 300 + every)
    np.testing.assert_array_equal(steps, of_all[(first <= of_all) & (of_all < end)])
    blocks = (of_all // every)[: 300 // every]
    np.testing.assert_array_equal(blocks, np.arange(300 // every))


def test_the_steps_depend_on_the_seed():
    assert len({tuple(due_steps(seed, 100, 0, 1000)) for seed in range(10)}) == 10


@given(PLACES)
def test_ranks_of_the_same_kernels_audit_each_other(places):
    chosen = auditors(places)
    for rank, (place, others) in enumerate(zip(places, chosen, strict=True)):
        alike = {r for r, other in enumerate(places) if other.kernels == place.kernels}
        assert sorted(others) == sorted(alike - {rank})
    usual = [others[0] for others in chosen if others]
    assert len({*usual}) == len(usual)


@given(PLACES)
def test_auditors_are_on_other_hosts_where_no_host_has_most_ranks(places):
    for rank, others in enumerate(auditors(places)):
        alike = [p.host for p in places if p.kernels == places[rank].kernels]
        most = max(map(alike.count, alike))
        if 2 * most <= len(alike):
            assert places[others[0]].host != places[rank].host
        hosts = {places[rank].host, *(places[other].host for other in others[:1])}
        judges = [places[other].host not in hosts for other in others[1:]]
        assert judges == sorted(judges, reverse=True)
