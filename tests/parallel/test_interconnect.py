"""The measurement of the network between ranks."""

import numpy as np
import pytest

from resnet.distributed import links
from resnet.exchange import choice

pytestmark = pytest.mark.ranks(3)


def test_all_ranks_measure_the_same_network(communicator):
    measured = choice.measure(communicator)
    assert communicator.allgather(measured) == [measured] * communicator.num_ranks
    assert 1e-7 < measured.latency < 1
    assert 1e5 < measured.bandwidth < 1e13


def test_each_rank_receives_its_part_from_each(communicator):
    own = 10 * communicator.rank + np.arange(3)[:, np.newaxis] * np.ones(2)
    received = communicator.alltoall(own)
    expected = 10 * np.arange(3)[:, np.newaxis] + communicator.rank * np.ones(2)
    np.testing.assert_array_equal(received, expected)


def test_two_ranks_exchange_arrays_while_others_do_not(communicator):
    partners = {0: 2, 2: 0}
    own = np.full(5, communicator.rank)
    if communicator.rank in partners:
        partner = partners[communicator.rank]
        received = communicator.exchange(own, partner)
        np.testing.assert_array_equal(received, np.full(5, partner))


def test_all_ranks_know_the_links_of_the_ring(communicator):
    measured = links.measure(communicator, [0, 1, 2])
    assert communicator.allgather(measured) == [measured] * communicator.num_ranks
    assert [link.ranks for link in measured] == [(0, 1), (1, 2), (2, 0)]
    for link in measured:
        assert 1e-7 < link.latency < 1
        assert 1e5 < link.bandwidth < 1e13
    assert links.measure(communicator, [1]) == []
