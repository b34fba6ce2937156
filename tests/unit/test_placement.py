import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import UserError
from resnet.hardware import placement
from resnet.hardware.placement import ProcessInfo, Threads

HYDRA = {
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "4",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
SLURM_STEP = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
FIFTH_OF_EIGHT = ProcessInfo(rank=5, num_ranks=8, local_rank=1, num_local_ranks=4)


@pytest.mark.parametrize(
    "environ", [HYDRA, OPEN_MPI, SLURM_STEP], ids=["Hydra", "Open MPI", "Slurm"]
)
def test_each_launcher_tells_the_place(environ):
    assert placement.find_process_info({"PATH": "/bin", **environ}) == FIFTH_OF_EIGHT


def test_without_a_launcher_a_process_is_alone():
    assert placement.find_process_info({"PATH": "/bin"}) == ProcessInfo(0, 1, 0, 1)


def test_a_launcher_that_does_not_tell_the_place_is_refused():
    part = {name: HYDRA[name] for name in ("PMI_RANK", "PMI_SIZE")}
    with pytest.raises(UserError, match="PMI_RANK is set"):
        placement.find_process_info(part)


def test_a_batch_script_is_no_rank():
    environ = {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_TASKS_PER_NODE": "4(x2)",
    }
    assert placement.find_process_info(environ) == ProcessInfo()


def test_hydra_under_slurm_is_hydra():
    # Its helper processes are tasks of Slurm, one a node.
    helper = {**SLURM_STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    assert placement.find_process_info({**helper, **HYDRA}) == FIFTH_OF_EIGHT


@pytest.mark.parametrize(
    ("tasks_per_node", "counts"),
    [
        ("2(x3),1", [2, 2, 2, 1]),
        ("3", [3]),
        ("4(x2)", [4, 4]),
        ("1,2(x2),5", [1, 2, 2, 5]),
    ],
)
def test_slurms_short_form_gives_the_tasks_of_each_node(tasks_per_node, counts):
    for node, count in enumerate(counts):
        environ = {
            **SLURM_STEP,
            "SLURM_NODEID": str(node),
            "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        }
        assert placement.find_process_info(environ).num_local_ranks == count


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
    assert placement.group_by_core(range(8), tmp_path) == [
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
    assert placement.group_by_core(range(4), tmp_path) == [(0,), (2,), (1,), (3,)]


def test_cores_of_the_same_number_are_told_apart_by_their_threads(tmp_path):
    # Two dies of a socket, each of which has the cores 0 and 1.
    for cpu in range(8):
        describe_cpu(tmp_path, cpu, socket=0, core=cpu % 2)
        siblings = tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings.write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert placement.group_by_core(range(8), tmp_path) == [
        (0, 4),
        (2, 6),
        (1, 5),
        (3, 7),
    ]


def test_only_the_allowed_processors_are_grouped(tmp_path):
    for cpu in range(8):
        describe_cpu(tmp_path, cpu, socket=0, core=cpu % 4)
    assert placement.group_by_core([6, 1, 5], tmp_path) == [(1, 5), (6,)]


def test_processors_that_are_not_described_are_cores_of_their_own(tmp_path):
    assert placement.group_by_core([3, 1], tmp_path) == [(1,), (3,)]


def test_this_machines_processors_are_grouped_completely():
    cpus = sorted(os.sched_getaffinity(0))
    cores = placement.group_by_core(cpus)
    assert sorted(cpu for core in cores for cpu in core) == cpus


def divided(num_ranks: int, cores) -> list[list[tuple[int, ...]]]:
    return [
        placement.cores_of_rank(
            ProcessInfo(rank, num_ranks, rank, num_ranks), [cores] * num_ranks
        )
        for rank in range(num_ranks)
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
        place = ProcessInfo(rank, 2, rank, 2)
        assert placement.cores_of_rank(place, seen) == own


def test_threads_are_one_a_core_unless_given():
    cores = [(0, 4), (1, 5)]
    assert placement.choose_threads(cores, 0, 0) == Threads((0, 4, 1, 5), 2, 1)
    assert placement.choose_threads(cores, 22, 2) == Threads((0, 4, 1, 5), 22, 2)
    assert placement.choose_threads(cores, 2, 2) == Threads((0, 4, 1, 5), 2, 2)


def test_the_last_free_core_is_for_communication():
    cores = [(core, core + 48) for core in range(24, 48)]
    assert placement.choose_threads(cores, 22, 2).communication_cpu == 47
    threads = Threads((0, 1), 1, 1, communication_cpu=1)
    settings = placement.environment(threads, 1, False, {}, num_local_ranks=3)
    # Horovod takes the processor at the index of the rank on the node.
    assert settings["HOROVOD_THREAD_AFFINITY"] == "1,1,1"
    environ = {"HOROVOD_THREAD_AFFINITY": "mine"}
    settings = placement.environment(threads, 1, False, environ)
    assert settings["HOROVOD_THREAD_AFFINITY"] == "mine"
    assert "HOROVOD_THREAD_AFFINITY" not in placement.environment(THREADS, 1, False, {})


THREADS = Threads((0, 1), num_intra_threads=22, num_inter_threads=2)


def test_the_environment_is_that_of_the_published_run():
    settings = placement.environment(THREADS, 1, False, {})
    assert settings["OMP_NUM_THREADS"] == "22"
    assert settings["KMP_BLOCKTIME"] == "1"
    assert settings["TF_NUM_INTRAOP_THREADS"] == "22"
    assert settings["TF_NUM_INTEROP_THREADS"] == "2"
    assert "ONEDNN_MAX_CPU_ISA" not in settings


def test_hidden_amx_is_not_used():
    settings = placement.environment(THREADS, 1, True, {})
    assert settings["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"


@given(
    st.sets(
        st.sampled_from(
            [
                "OMP_NUM_THREADS",
                "KMP_AFFINITY",
                "KMP_BLOCKTIME",
                "KMP_SETTINGS",
                "TF_CPP_MIN_LOG_LEVEL",
                "CUDA_VISIBLE_DEVICES",
                "ONEDNN_MAX_CPU_ISA",
                *placement.TENSOR_ALLOCATOR,
            ]
        )
    )
)
def test_what_the_user_has_set_stays(names):
    environ = dict.fromkeys(names, "mine")
    settings = placement.environment(THREADS, 1, True, environ)
    for name in names:
        assert settings[name] == "mine"
    assert "mine" not in {settings[name] for name in settings.keys() - names}


def test_the_number_of_tensorflows_threads_is_the_flags():
    environ = {"TF_NUM_INTRAOP_THREADS": "7", "TF_NUM_INTEROP_THREADS": "7"}
    settings = placement.environment(THREADS, 1, False, environ)
    assert settings["TF_NUM_INTRAOP_THREADS"] == "22"
    assert settings["TF_NUM_INTEROP_THREADS"] == "2"


def test_settling_binds_the_process_and_sets_its_environment(monkeypatch):
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: bound.append(cpus))
    monkeypatch.setenv("PLACEMENT_TEST", "old")
    placement.apply(THREADS, {"PLACEMENT_TEST": "new"})
    assert bound == [(0, 1)]
    assert os.environ["PLACEMENT_TEST"] == "new"


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        ("7f00-7f01 r-xp 0 0:0 1 /opt/lib/libiomp5.so\n", True),
        ("7f00-7f01 r-xp 0 0:0 1 /opt/lib/libc.so.6\n", False),
    ],
)
def test_openmp_is_told_from_the_libraries_in_memory(tmp_path, maps, expected):
    path = tmp_path / "maps"
    path.write_text(maps)
    assert placement.openmp_is_loaded(path) is expected
    assert not placement.openmp_is_loaded(tmp_path / "missing")


def test_ranks_that_are_bound_to_the_same_socket_divide_it():
    sockets = [[(0,), (1,), (2,), (3,)], [(4,), (5,), (6,), (7,)]]
    cores_seen = [sockets[0], sockets[1], sockets[0], sockets[1]]
    own = [
        placement.cores_of_rank(
            ProcessInfo(local_rank=local_rank, num_local_ranks=4), cores_seen
        )
        for local_rank in range(4)
    ]
    assert own == [[(0,), (1,)], [(4,), (5,)], [(2,), (3,)], [(6,), (7,)]]
