"""The formulas of collectives, against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.estimating import collectives
from launch.estimating.cluster import SUM_BYTES_PER_SECOND, Cluster
from launch.estimating.collectives import Stages
from resnet.exchange import plan

NODES = st.integers(2, 4096)
BYTES = st.integers(1, 1 << 30)


def test_stages_take_latency_bytes_and_sums():
    cluster = Cluster(1.0, latency=1e-3, bandwidth=1000.0)
    stages = Stages(3, 500.0, 2 * SUM_BYTES_PER_SECOND)
    assert stages.seconds(cluster) == pytest.approx(0.003 + 0.5 + 2)


@pytest.mark.parametrize(
    ("num_nodes", "ranks_per_node", "stages", "times_sent"),
    # lg 8 = 3 stages, in which both ranks of a node send the tensor. Of 6 nodes 4 are
    # left after the pairs: lg 4 = 2 stages, and one before and after; 2 ranks of a node
    # are a pair.
    [(8, 1, 3, 3), (8, 2, 3, 6), (6, 1, 4, 4), (6, 2, 2, 4), (1, 1, 0, 0)],
)
def test_recursive_doubling_sends_the_tensor_in_each_stage(
    num_nodes, ranks_per_node, stages, times_sent
):
    found = collectives.recursive_doubling(1000, num_nodes, ranks_per_node)
    assert found == Stages(stages, times_sent * 1000, stages * 1000)


@pytest.mark.parametrize(
    ("num_nodes", "ranks_per_node", "expected"),
    [
        # 2 lg 8 stages; 500 + 250 + 125 bytes, and again in the all-gather.
        (8, 1, Stages(6, 1750, 875)),
        (8, 2, Stages(6, 1750, 875)),
        # As on 4 nodes, 1500 bytes, and the tensor there and back.
        (6, 1, Stages(6, 3500, 1750)),
        (6, 2, Stages(4, 1500, 750)),
    ],
)
def test_rabenseifner_halves_the_tensor(num_nodes, ranks_per_node, expected):
    assert collectives.rabenseifner(1000, num_nodes, ranks_per_node) == expected


def test_a_ring_of_five_ranks_sends_eight_fifths_of_the_tensor():
    assert collectives.ring(1000, 5) == Stages(8, 1600, 800)


@given(num_bytes=BYTES, num_ranks=NODES)
def test_a_ring_sends_2_times_r_minus_1_over_r(num_bytes, num_ranks):
    sent = collectives.ring(num_bytes, num_ranks).sent_bytes
    assert sent * num_ranks == pytest.approx(2 * (num_ranks - 1) * num_bytes)
    counted = plan.sent_by_allreduce(num_bytes, num_ranks)
    assert sent == pytest.approx(counted, abs=0.5)


@given(num_bytes=BYTES, power=st.integers(1, 12))
def test_rabenseifner_sends_as_much_as_a_ring_on_powers_of_two(num_bytes, power):
    tree = collectives.rabenseifner(num_bytes, 1 << power)
    around = collectives.ring(num_bytes, 1 << power)
    assert tree.sent_bytes == pytest.approx(around.sent_bytes)
    assert tree.num_messages == 2 * power <= around.num_messages


@given(num_bytes=BYTES, num_nodes=NODES, ranks=st.integers(1, 4))
def test_auto_is_the_fastest(num_bytes, num_nodes, ranks):
    cluster = Cluster(1.0, ranks_per_node=ranks)
    seconds = {
        kind: collectives.allreduce(num_bytes, num_nodes, cluster, kind).seconds(
            cluster
        )
        for kind in collectives.ALLREDUCES
    }
    assert seconds["auto"] == min(seconds.values())


def test_short_tensors_are_doubled_and_long_ones_aren_t():
    cluster = Cluster(1.0, latency=50e-6, bandwidth=125e6)
    short, long = (
        collectives.allreduce(size, 64, cluster, "auto") for size in (16, 1e8)
    )
    assert short == collectives.recursive_doubling(16, 64)
    assert long == collectives.rabenseifner(1e8, 64)


def test_an_allgather_of_long_messages_goes_round_a_ring():
    assert collectives.allgather(1e6, 5) == Stages(4, 4e6)
    # 8 messages of 10 bytes are short: 3 stages.
    assert collectives.allgather(10, 8) == Stages(3, 70)


def test_slices_are_sent_to_their_owners_and_gathered():
    # 4 ranks: 3 slices of a quarter to the others, then 3 around the ring.
    assert collectives.slices(4e6, 4, 1) == Stages(6, 6e6)
    # 2 ranks on each of 2 nodes: both send 2 of 4 slices to the other node.
    assert collectives.slices(4e6, 4, 2) == Stages(6, 4e6 + 3e6)


@given(num_bytes=BYTES, num_ranks=NODES)
def test_slices_of_a_rank_have_the_bytes_of_the_exchange(num_bytes, num_ranks):
    sent = collectives.slices(num_bytes, num_ranks, 1).sent_bytes
    counted = plan.sent_by_slices(num_bytes, num_ranks)
    assert sent == pytest.approx(counted, abs=0.5)
