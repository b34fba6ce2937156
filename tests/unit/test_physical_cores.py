"""Physical cores, and how the ranks of a node divide them."""

import os

from hypothesis import given
from hypothesis import strategies as st

from resnet.hardware import physical_cores


def describe_cpu(topology, cpu: int, socket: int, core: int) -> None:
    folder = topology / f"cpu{cpu}" / "topology"
    folder.mkdir(parents=True)
    (folder / "physical_package_id").write_text(f"{socket}\n")
    (folder / "core_id").write_text(f"{core}\n")


def test_hyperthreads_belong_to_their_core_and_sockets_follow_one_another(tmp_path):
    # Two sockets of two cores of two threads, numbered as Linux often does: first all
    # cores, sockets in turn, then their second threads. Core numbers repeat.
    for cpu in range(8):
        describe_cpu(tmp_path, cpu, socket=cpu % 2, core=cpu // 2 % 2)
    assert physical_cores.group_by_core(range(8), tmp_path) == [
        (0, 4),
        (2, 6),
        (1, 5),
        (3, 7),
    ]


def test_the_cores_of_a_numa_node_follow_one_another(tmp_path):
    # A socket with two sub-NUMA clusters, whose cores have numbers in turn.
    for cpu in range(4):
        describe_cpu(tmp_path, cpu, socket=0, core=cpu)
        (tmp_path / f"cpu{cpu}" / f"node{cpu % 2}").mkdir()
    assert physical_cores.group_by_core(range(4), tmp_path) == [(0,), (2,), (1,), (3,)]


def test_cores_of_the_same_number_are_told_apart_by_their_threads(tmp_path):
    # Two dies of a socket, each of which has the cores 0 and 1.
    for cpu in range(8):
        describe_cpu(tmp_path, cpu, socket=0, core=cpu % 2)
        siblings = tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings.write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert physical_cores.group_by_core(range(8), tmp_path) == [
        (0, 4),
        (2, 6),
        (1, 5),
        (3, 7),
    ]


def test_only_the_allowed_processors_are_grouped(tmp_path):
    for cpu in range(8):
        describe_cpu(tmp_path, cpu, socket=0, core=cpu % 4)
    assert physical_cores.group_by_core([6, 1, 5], tmp_path) == [(1, 5), (6,)]


def test_processors_that_are_not_described_are_cores_of_their_own(tmp_path):
    assert physical_cores.group_by_core([3, 1], tmp_path) == [(1,), (3,)]


def test_this_machines_processors_are_grouped_completely():
    grouped = [cpu for core in physical_cores.usable() for cpu in core]
    assert sorted(grouped) == sorted(os.sched_getaffinity(0))


def divided(num_ranks: int, cores) -> list[list[tuple[int, ...]]]:
    return [
        physical_cores.of_rank(rank, [cores] * num_ranks) for rank in range(num_ranks)
    ]


@given(data=st.data(), num_cores=st.integers(1, 128), threads=st.integers(1, 2))
def test_ranks_divide_the_cores_completely_evenly_and_without_overlap(
    data, num_cores, threads
):
    num_ranks = data.draw(st.integers(1, num_cores))
    cores = [
        tuple(num_cores * t + core for t in range(threads)) for core in range(num_cores)
    ]
    parts = divided(num_ranks, cores)
    # In order and joined, they are the cores: each one once, in runs of neighbours.
    assert [core for part in parts for core in part] == cores
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(data=st.data(), num_cores=st.integers(1, 16))
def test_more_ranks_than_cores_share_them_evenly(data, num_cores):
    num_ranks = data.draw(st.integers(num_cores, 64))
    cores = [(core,) for core in range(num_cores)]
    parts = divided(num_ranks, cores)
    assert all(len(part) == 1 for part in parts)
    loads = [sum(core in part for part in parts) for core in cores]
    assert max(loads) - min(loads) <= 1


def test_two_ranks_of_a_node_with_two_sockets_get_one_each():
    cores = [(core, core + 48) for core in range(48)]  # Sockets one after the other.
    assert divided(2, cores) == [cores[:24], cores[24:]]


def test_ranks_that_their_launcher_bound_keep_what_they_have():
    seen = [[(0,), (1,)], [(2,), (3,), (4,)]]
    for rank, own in enumerate(seen):
        assert physical_cores.of_rank(rank, seen) == own


def test_ranks_that_are_bound_to_the_same_socket_divide_it():
    sockets = [[(0,), (1,), (2,), (3,)], [(4,), (5,), (6,), (7,)]]
    cores_seen = [sockets[0], sockets[1], sockets[0], sockets[1]]
    own = [physical_cores.of_rank(local_rank, cores_seen) for local_rank in range(4)]
    assert own == [[(0,), (1,)], [(4,), (5,)], [(2,), (3,)], [(6,), (7,)]]
