"""The nodes: stated, read of a machine, from a file, and of several hosts."""

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import topology
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


def test_a_socket_is_divided_evenly():
    with pytest.raises(UserError, match="--numa_per_socket; got 24 and 5"):
        topology.stated(1, 2, 24, 1, 5)


@given(st.sets(st.integers(0, 300)))
def test_lists_of_processors_are_read_as_they_are_written(cpus):
    assert topology.parse_cpu_list(topology.cpu_list(sorted(cpus))) == sorted(cpus)


def test_lists_of_processors_have_linuxs_form():
    assert topology.cpu_list([4, 5, 6, 0, 9]) == "0,4-6,9"
    assert topology.parse_cpu_list("0,4-11,21-22\n") == [0, *range(4, 12), 21, 22]
    assert topology.parse_cpu_list("") == []


@pytest.mark.parametrize("change", [{"cores": []}, {"cores": 3}, {"more": 1}, None])
def test_another_file_is_refused(change, tmp_path):
    values = json.loads(topology.to_json(topology.stated(1, 1, 2)))
    path = tmp_path / "node.json"
    path.write_text(json.dumps({**values, **change}) if change else "nodes: 4")
    with pytest.raises(UserError, match=r"node\.json must hold the output of"):
        topology.read(str(path))


def test_a_topology_is_read_from_a_pipe():
    node = topology.stated(1, 1, 2)
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as file:
        file.write(topology.to_json(node))
    assert topology.read(f"/dev/fd/{read_end}") == node
    os.close(read_end)


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


def test_two_sockets_whose_cores_are_numbered_in_turn(tmp_path):
    node = topology.probe(machine_trees.two_sockets(tmp_path))
    assert (node.sockets, node.numa_nodes) == ((0, 1), (0, 1))
    assert len(node.cores) == node.num_installed_cores == 48
    assert node.threads_per_core == 2
    assert [core.cpus for core in node.cores[:2]] == [(0, 48), (2, 50)]
    assert [core.socket for core in node.cores] == [0] * 24 + [1] * 24
    assert node.memory_bytes == 192 << 30
    assert node.instruction_sets == ("avx2", "avx512f")
    assert node.cpu_model == "Test CPU"
    # Those of hardware that are up.
    ports = (Interface("eno1", 10_000), Interface("hfi1_0:1", 100_000))
    assert node.interfaces == ports


@pytest.mark.parametrize(
    ("machine", "cpus", "memory", "quota"),
    [
        (machine_trees.fragmented, "0,4-11,21-26,30-46", 64 << 30, 0),
        (machine_trees.cgroup_v1, "4-7", 8 << 30, 1.5),
        (machine_trees.quota, "0-15", 0, 4.5),
        (machine_trees.single_core, "0", 2 << 30, 0),  # Without cgroups.
    ],
)
def test_limits_of_cgroups_and_those_above(machine, cpus, memory, quota, tmp_path):
    node = topology.probe(machine(tmp_path))
    usable = [cpu for core in node.cores for cpu in core.cpus]
    assert topology.cpu_list(usable) == cpus
    assert (node.memory_bytes, node.cpu_quota) == (memory, quota)


@pytest.mark.parametrize(
    ("machine", "sockets", "cores", "instruction_sets", "model"),
    [
        (machine_trees.graviton, 2, 64, ("asimd", "sve", "bf16"), "Neoverse V1"),
        (machine_trees.raspberry_pi, 1, 4, ("asimd",), "Cortex-A72"),
    ],
)
def test_arm_processors(machine, sockets, cores, instruction_sets, model, tmp_path):
    node = topology.probe(machine(tmp_path))
    assert len(node.sockets) == len(node.numa_nodes) == sockets
    assert len(node.cores) == node.num_installed_cores == cores
    assert node.threads_per_core == 1
    assert not any(core.is_efficiency_core for core in node.cores)
    assert (node.instruction_sets, node.cpu_model) == (instruction_sets, model)


def test_efficiency_cores_are_told_from_fast_ones(tmp_path):
    machines = {machine_trees.laptop: (6, 8), machine_trees.big_little: (4, 4)}
    for machine, (num_fast, num_slow) in machines.items():
        node = topology.probe(machine(tmp_path / machine.__name__))
        slow = [core.is_efficiency_core for core in node.cores]
        assert slow == [False] * num_fast + [True] * num_slow


def test_an_affinity_mask_leaves_a_hyper_thread_of_a_core(tmp_path):
    cores = [(0, 0, number % 4) for number in range(8)]
    node = topology.probe(machine_trees.write(tmp_path, cores, allowed="1,2,5"))
    assert [core.cpus for core in node.cores] == [(1, 5), (2,)]
    assert (node.num_installed_cores, node.threads_per_core) == (4, 2)


@pytest.mark.parametrize("machine", machine_trees.MACHINES)
def test_a_machine_survives_json_and_its_cores_are_those_that_ranks_find(
    machine, tmp_path
):
    node = topology.probe(machine(tmp_path))
    cores = [core.cpus for core in node.cores]
    cpus = [cpu for core in cores for cpu in core]
    folder = tmp_path / "sys/devices/system/cpu"
    assert physical_cores.group_by_core(cpus, folder) == cores
    path = tmp_path / "node.json"
    path.write_text(topology.to_json(node))
    assert topology.read(str(path)) == node
