"""How ranks divide the cores of a node."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import layout, topology
from resnet.base.errors import UserError
from tests.unit import machine_trees


def test_sub_numa_clusters_have_a_rank_each(tmp_path):
    chosen = layout.choose(topology.probe(machine_trees.sub_numa_clusters(tmp_path)))
    nodes = [{core.numa_node for core in cores} for cores in chosen.cores]
    assert nodes == [{0}, {1}, {2}, {3}]
    assert chosen.num_intra_threads == 7


def test_a_fragmented_cpuset_crosses_numa_nodes_and_says_what_does_not(tmp_path):
    node = topology.probe(machine_trees.fragmented(tmp_path))
    chosen = layout.choose(node)
    assert [len(cores) for cores in chosen.cores] == [16, 16]
    assert "as many ranks as sockets, which have 12 and 20" in chosen.reasons[0]
    limited, crossing = chosen.warnings
    assert "allows only 32 of the 48 cores" in limited
    assert "processors 0,4-11,21-26,30-46" in limited
    assert "a node's ranks 0 have cores of several NUMA nodes" in crossing
    better = int(re.search("--ranks_per_node=([0-9]+) avoids it", crossing)[1])
    assert better == 8  # The sockets have 12 and 20 usable cores: 4 divides both.
    assert len(layout.choose(node, better).warnings) == 1


def test_efficiency_cores_are_left_out_and_the_ranks_restricted(tmp_path):
    chosen = layout.choose(topology.probe(machine_trees.laptop(tmp_path)))
    assert chosen.ranks_per_node == 1
    assert len(chosen.cores[0]) == 6
    assert chosen.restricted_to == tuple(range(12))
    assert "the 8 efficiency cores are left out" in chosen.reasons[0]


def test_a_quota_limits_the_cores(tmp_path):
    chosen = layout.choose(topology.probe(machine_trees.quota(tmp_path)))
    assert chosen.cores_per_node == 4
    assert chosen.restricted_to == (0, 1, 2, 3)
    assert (
        "that of 4.5 processors, so that 4 of 16 cores are used" in chosen.warnings[0]
    )


def test_a_cgroup_of_one_core_is_refused_unless_one_rank_is_asked_for(tmp_path):
    node = topology.probe(machine_trees.one_of_many(tmp_path))
    with pytest.raises(UserError, match="more than one core; it leaves one of 64"):
        layout.choose(node)
    first, second = layout.choose(node, ranks_per_node=1).warnings
    assert "allows only 1 of the 64 cores of the node (processors 17)" in first
    assert "only one core" in second
    with pytest.raises(UserError, match="got 2 ranks for the 1 usable core"):
        layout.choose(node, ranks_per_node=2)


def test_a_rank_without_a_core_for_each_thread_is_refused():
    node = topology.stated(1, 2, 4)
    with pytest.raises(UserError, match="got 9 ranks for the 8 usable core"):
        layout.choose(node, 9)
    with pytest.raises(UserError, match="--num_intra_threads=5 for its cores, 4"):
        layout.choose(node, 2, 5)


def test_a_quota_of_one_processor_is_refused_and_a_machine_of_one_core_is_not():
    several = topology.stated(1, 1, 4)
    with pytest.raises(UserError, match="it leaves one of 4"):
        layout.choose(dataclasses.replace(several, cpu_quota=1.5))
    assert layout.choose(topology.stated(1, 1, 1)).cores_per_node == 1


def test_uneven_ranks_are_said_and_threads_are_those_given():
    chosen = layout.choose(topology.stated(1, 1, 7), 2)
    assert chosen.num_intra_threads == 3
    assert "have 3 or 4 cores" in chosen.warnings[0]
    chosen = layout.choose(topology.stated(1, 1, 24), None, 20, 3)
    assert (chosen.num_intra_threads, chosen.num_inter_threads) == (20, 3)
    assert chosen.num_communication_cores == 4


@st.composite
def nodes(draw):
    """Draws a node, whose cores are some of those of a machine."""
    sockets, per_socket = draw(st.integers(1, 4)), draw(st.integers(1, 32))
    threads = draw(st.integers(1, 2))
    node = topology.stated(draw(st.integers(256, 2048)), sockets, per_socket, threads)
    some = draw(st.lists(st.sampled_from(node.cores), min_size=1, unique=True))
    cores = sorted(some, key=node.cores.index)
    return dataclasses.replace(node, cores=tuple(cores), has_cpu_numbers=True)


@given(data=st.data(), node=nodes())
def test_each_core_has_one_rank_and_each_rank_a_core(data, node):
    ranks = st.integers(1, len(node.cores))
    if len(node.cores) > 1 or node.num_installed_cores == 1:
        ranks = st.none() | ranks  # A single one of several needs the number.
    ranks = data.draw(ranks)
    chosen = layout.choose(node, ranks)
    used = [core for cores in chosen.cores for core in cores]
    assert used == list(node.cores)  # Each once, in order, whole: with its siblings.
    assert all(chosen.cores)
    assert 1 <= chosen.num_intra_threads <= chosen.cores_per_rank
    sizes = {len(cores) for cores in chosen.cores}
    assert max(sizes) - min(sizes) <= 1
    if any(reason.startswith("one rank on each") for reason in chosen.reasons):
        of_ranks = [{core.numa_node for core in cores} for cores in chosen.cores]
        assert sorted(map(sorted, of_ranks)) == [[number] for number in node.numa_nodes]
    assert chosen.num_ranks == node.num_nodes * len(chosen.cores)
