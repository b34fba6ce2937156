import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.nodes import topology
from resnet.base.errors import UserError


def test_stated_nodes_have_their_cores_by_socket_and_cluster():
    node = topology.stated(4, 2, 6, threads_per_core=2, numa_per_socket=3)
    assert node.num_nodes == 4
    assert [core.socket for core in node.cores] == [0] * 6 + [1] * 6
    assert [core.numa_node for core in node.cores] == sorted([0, 1, 2, 3, 4, 5] * 2)
    assert node.cores[1].cpus == (1, 13)
    assert not node.has_cpu_numbers


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 2, 24), "--num_nodes must be at least 1; got 0"),
        ((1, 0, 24), "--sockets must be"),
        ((1, 2, -3), "--cores_per_socket must be"),
        ((1, 2, 24, 0), "--threads_per_core must be"),
        ((1, 2, 24, 1, 5), "multiple of --numa_per_socket; got 24 and 5"),
    ],
)
def test_impossible_numbers_are_refused(numbers, message):
    with pytest.raises(UserError, match=message):
        topology.stated(*numbers)


@given(st.sets(st.integers(0, 300)))
def test_lists_of_processors_are_read_as_they_are_written(cpus):
    assert topology.parse_cpu_list(topology.cpu_list(sorted(cpus))) == sorted(cpus)


def test_lists_of_processors_have_linuxs_form():
    assert topology.cpu_list([4, 5, 6, 0, 9]) == "0,4-6,9"
    assert topology.parse_cpu_list("0,4-11,21-22\n") == [0, *range(4, 12), 21, 22]
    assert topology.parse_cpu_list("") == []


def test_a_file_gives_the_same_topology():
    node = dataclasses.replace(
        topology.stated(2, 2, 4, 2),
        interfaces=(topology.Interface("ib0", 100_000),),
        hosts=("a", "b"),
    )
    assert topology.from_json(topology.to_json(node), "it") == node


@pytest.mark.parametrize("change", [{"cores": []}, {"cores": 3}, {"more": 1}, None])
def test_another_file_is_refused(change):
    values = json.loads(topology.to_json(topology.stated(1, 1, 2)))
    text = json.dumps({**values, **change}) if change else "nodes: 4"
    with pytest.raises(UserError, match=r"node\.json must be the output of"):
        topology.from_json(text, "node.json")


def hosts(**changes):
    node = topology.stated(1, 2, 4, memory_bytes=10**11)
    return [("a", node), ("b", node), ("c", dataclasses.replace(node, **changes))]


def test_equal_hosts_are_one_topology():
    other = {"memory_bytes": 99 * 10**9, "interfaces": (topology.Interface("e", 1),)}
    found = topology.of_hosts(hosts(**other))
    assert (found.num_nodes, found.hosts) == (3, ("a", "b", "c"))
    assert found.memory_bytes == 99 * 10**9  # That of the smallest.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cpu_model": "old"}, "a and c differ in cpu_model"),
        ({"cores": topology.stated(1, 2, 3).cores}, r"usable cores \(8 and 6\)"),
        ({"memory_bytes": 5 * 10**10}, r"memory \(100 and 50 GB\)"),
        ({"instruction_sets": ("avx2",)}, "a and c differ in instruction_sets"),
    ],
)
def test_hosts_that_differ_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        topology.of_hosts(hosts(**change))
