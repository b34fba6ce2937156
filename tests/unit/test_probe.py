"""What is read of a machine: cores, limits, memory, instructions and network."""

import os

import pytest

from launch.nodes import probe, topology
from launch.nodes.topology import Interface
from resnet.hardware import physical_cores
from tests.unit import machine_trees


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


def test_interfaces_of_hardware_that_are_up_have_their_speed(tmp_path):
    found = read(machine_trees.two_sockets, tmp_path)
    assert found.interfaces == (
        Interface("eno1", 10_000),
        Interface("hfi1_0:1", 100_000),
    )
    assert found.gigabits_per_second == 100
    found = read(machine_trees.laptop, tmp_path / "laptop")
    assert found.interfaces == (Interface("wlp1s0", 0),)


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
    assert found.memory_bytes == 64 << 30
    assert found.cpu_quota == 0


def test_limits_of_version_1(tmp_path):
    found = read(machine_trees.cgroup_v1, tmp_path)
    assert [core.cpus for core in found.cores] == [(4,), (5,), (6,), (7,)]
    assert found.memory_bytes == 8 << 30
    assert found.cpu_quota == 0


def test_a_quota_of_processor_time(tmp_path):
    assert read(machine_trees.quota, tmp_path).cpu_quota == 4.5


def test_a_quota_of_version_1(tmp_path):
    root = machine_trees.cgroup_v1(tmp_path)
    (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("150000\n")
    assert probe.probe(root).cpu_quota == 1.5


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (machine_trees.laptop, [False] * 6 + [True] * 8),
        (machine_trees.big_little, None),
    ],
)
def test_efficiency_cores_are_told_from_fast_ones(machine, expected, tmp_path):
    found = read(machine, tmp_path)
    slow = [core.is_efficiency_core for core in found.cores]
    assert slow == (expected or [False] * 4 + [True] * 4)


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
    cores = [core.cpus for core in probe.probe(root).cores]
    cpus = [cpu for core in cores for cpu in core]
    folder = root / "sys/devices/system/cpu"
    assert physical_cores.group_by_core(cpus, folder) == cores


def test_this_machine():
    found = probe.probe()
    cpus = [cpu for core in found.cores for cpu in core.cpus]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0))
    assert found.memory_bytes > 1 << 28
    assert topology.from_json(topology.to_json(found), "it") == found
