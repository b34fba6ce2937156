"""The measurement of the network between ranks."""

import numpy as np
import pytest

from resnet.distributed import network


@pytest.mark.ranks(3)
def test_all_ranks_measure_the_same_network(communicator):
    measured = network.measure(communicator)
    assert communicator.allgather(measured) == [measured] * communicator.num_ranks
    assert 1e-7 < measured.latency < 1
    assert 1e5 < measured.bandwidth < 1e13


@pytest.mark.ranks(3)
def test_each_rank_receives_its_part_from_each(communicator):
    own = 10 * communicator.rank + np.arange(3)[:, np.newaxis] * np.ones(2)
    received = communicator.alltoall(own)
    expected = 10 * np.arange(3)[:, np.newaxis] + communicator.rank * np.ones(2)
    np.testing.assert_array_equal(received, expected)
