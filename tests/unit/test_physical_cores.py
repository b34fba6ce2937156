"""Physical cores, and how the ranks of a node divide them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.hardware import physical_cores


@pytest.mark.parametrize(
    ("places", "allowed", "cores"),
    [
        # Two sockets of two cores of two threads, numbered as Linux often does: first
        # all cores, sockets in turn, then their second threads. Core numbers repeat.
        (
            [(cpu % 2, 0, cpu // 2 % 2, "") for cpu in range(8)],
            range(8),
            [(0, 4), (2, 6), (1, 5), (3, 7)],
        ),
        # A socket with two sub-NUMA clusters, whose cores have numbers in turn.
        (
            [(0, cpu % 2, cpu, "") for cpu in range(4)],
            range(4),
            [(0,), (2,), (1,), (3,)],
        ),
        # Two dies of a socket, each of which has the cores 0 and 1.
        (
            [(0, 0, cpu % 2, f"{cpu % 4},{cpu % 4 + 4}") for cpu in range(8)],
            range(8),
            [(0, 4), (2, 6), (1, 5), (3, 7)],
        ),
        ([(0, 0, cpu % 4, "") for cpu in range(8)], [6, 1, 5], [(1, 5), (6,)]),
        ([], [3, 1], [(1,), (3,)]),  # Not described.
    ],
)
def test_processors_are_grouped_by_core_cluster_and_socket(
    tmp_path, places, allowed, cores
):
    for cpu, (socket, numa_node, core, siblings) in enumerate(places):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "core_id").write_text(f"{core}\n")
        (folder.parent / f"node{numa_node}").mkdir()
        if siblings:
            (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores.group_by_core(allowed, tmp_path) == cores


def divided(num_ranks: int, cores) -> list[list[tuple[int, ...]]]:
    return [
        physical_cores.of_rank(rank, [cores] * num_ranks) for rank in range(num_ranks)
    ]


@given(
    num_cores=st.integers(1, 128),
    threads=st.integers(1, 2),
    num_ranks=st.integers(1, 128),
)
def test_ranks_divide_the_cores_completely_and_evenly(num_cores, threads, num_ranks):
    cores = [
        tuple(num_cores * t + core for t in range(threads)) for core in range(num_cores)
    ]
    parts = divided(num_ranks, cores)
    loads = [sum(core in part for part in parts) for core in cores]
    if num_ranks <= num_cores:
        # In order and joined, they are the cores: each one once, in runs of neighbours.
        assert [core for part in parts for core in part] == cores
        loads = [len(part) for part in parts]
    else:
        assert {len(part) for part in parts} == {1}
    assert max(loads) - min(loads) <= 1
    assert min(loads) >= 1


def test_ranks_that_their_launcher_bound_divide_what_they_have():
    sockets = [[(0,), (1,), (2,), (3,)], [(4,), (5,), (6,), (7,)]]
    for rank, own in enumerate(sockets):
        assert physical_cores.of_rank(rank, sockets) == own
    cores_seen = [sockets[0], sockets[1], sockets[0], sockets[1]]
    own = [physical_cores.of_rank(local_rank, cores_seen) for local_rank in range(4)]
    assert own == [[(0,), (1,)], [(4,), (5,)], [(2,), (3,)], [(6,), (7,)]]
