"""The nodes: stated, read of a machine, from a file, and of several hosts."""

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import probe, topology
from launch.topology import Interface
from resnet.base.errors import UserError
from resnet.hardware import physical_cores
from tests.unit import machine_trees


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
        ((1, 0, 24), "--sockets must be at least 1; got 0"),
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


@pytest.mark.parametrize("change", [{"cores": []}, {"cores": 3}, {"more": 1}, None])
def test_another_file_is_refused(change):
    values = json.loads(topology.to_json(topology.stated(1, 1, 2)))
    text = json.dumps({**values, **change}) if change else "nodes: 4"
    with pytest.raises(UserError, match=r"node\.json must hold the output of"):
        topology.from_json(text, "node.json")


def hosts(**changes):
    node = topology.stated(1, 2, 4, memory_bytes=10**11)
    return [("a", node), ("b", node), ("c", dataclasses.replace(node, **changes))]


def test_equal_hosts_are_one_topology():
    other = {"memory_bytes": 99 * 10**9, "interfaces": (Interface("e", 1),)}
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


def read(machine, tmp_path):
    return probe.probe(machine(tmp_path))


def test_two_sockets_whose_cores_are_numbered_in_turn(tmp_path):
    found = read(machine_trees.two_sockets, tmp_path)
    assert (found.sockets, found.numa_nodes) == ((0, 1), (0, 1))
    assert len(found.cores) == found.num_installed_cores == 48
    assert found.threads_per_core == 2
    assert [core.cpus for core in found.cores[:2]] == [(0, 48), (2, 50)]
    assert [core.socket for core in found.cores] == [0] * 24 + [1] * 24
    assert found.cores[24].cpus == (1, 49)
    assert found.memory_bytes == 192 << 30
    assert found.instruction_sets == ("avx2", "avx512f")
    assert found.cpu_model == "Test CPU"
    # Those of hardware that are up.
    ports = (Interface("eno1", 10_000), Interface("hfi1_0:1", 100_000))
    assert found.interfaces == ports
    assert found.gigabits_per_second == 100


def test_the_cores_of_a_cluster_are_together_although_their_numbers_alternate(tmp_path):
    found = read(machine_trees.sub_numa_clusters, tmp_path)
    assert found.numa_nodes == (0, 1, 2, 3)
    assert [core.numa_node for core in found.cores] == sorted([0, 1, 2, 3] * 8)
    assert [core.cpus for core in found.cores[:3]] == [(0,), (2,), (4,)]
    assert found.instruction_sets == ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def test_a_fragmented_cpuset_of_version_2_and_the_memory_of_a_group_above(tmp_path):
    found = read(machine_trees.fragmented, tmp_path)
    cpus = [cpu for core in found.cores for cpu in core.cpus]
    assert topology.cpu_list(cpus) == "0,4-11,21-26,30-46"
    assert found.num_installed_cores == 48
    assert [core.socket for core in found.cores] == [0] * 12 + [1] * 20
    assert (found.memory_bytes, found.cpu_quota) == (64 << 30, 0)


def test_limits_of_version_1(tmp_path):
    root = machine_trees.cgroup_v1(tmp_path)
    found = probe.probe(root)
    assert [core.cpus for core in found.cores] == [(4,), (5,), (6,), (7,)]
    assert (found.memory_bytes, found.cpu_quota) == (8 << 30, 0)
    (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("150000\n")
    assert probe.probe(root).cpu_quota == 1.5


def test_a_quota_of_processor_time(tmp_path):
    assert read(machine_trees.quota, tmp_path).cpu_quota == 4.5


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (machine_trees.laptop, [False] * 6 + [True] * 8),
        (machine_trees.big_little, [False] * 4 + [True] * 4),
    ],
)
def test_efficiency_cores_are_told_from_fast_ones(machine, expected, tmp_path):
    found = read(machine, tmp_path)
    assert [core.is_efficiency_core for core in found.cores] == expected


def test_a_single_core_without_cgroups(tmp_path):
    found = read(machine_trees.single_core, tmp_path)
    assert [core.cpus for core in found.cores] == [(0,)]
    assert found.memory_bytes == 2 << 30


def test_an_affinity_mask_leaves_a_hyper_thread_of_a_core(tmp_path):
    cores = [(0, 0, number % 4) for number in range(8)]
    root = machine_trees.write(tmp_path, cores, allowed="1,2,5")
    found = probe.probe(root)
    assert [core.cpus for core in found.cores] == [(1, 5), (2,)]
    assert (found.num_installed_cores, found.threads_per_core) == (4, 2)


@pytest.mark.parametrize("machine", machine_trees.MACHINES)
def test_ranks_find_the_same_cores_in_the_same_order(machine, tmp_path):
    root = machine(tmp_path)
    found = probe.probe(root)
    cores = [core.cpus for core in found.cores]
    cpus = [cpu for core in cores for cpu in core]
    folder = root / "sys/devices/system/cpu"
    assert physical_cores.group_by_core(cpus, folder) == cores
    assert topology.from_json(topology.to_json(found), "it") == found


def test_this_machine():
    found = probe.probe()
    cpus = [cpu for core in found.cores for cpu in core.cpus]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0))
    assert found.memory_bytes > 1 << 28
