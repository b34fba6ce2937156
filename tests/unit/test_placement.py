import pytest

from resnet.base.errors import UserError
from resnet.hardware import placement
from resnet.hardware.placement import ProcessInfo, Threads

HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8"}
HYDRA |= {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": n for name, n in zip(NAMES, "5814", strict=True)}
SLURM_STEP = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
FIFTH_OF_EIGHT = ProcessInfo(rank=5, num_ranks=8, local_rank=1, num_local_ranks=4)


BATCH_SCRIPT = {name: SLURM_STEP[name] for name in ("SLURM_PROCID", "SLURM_NTASKS")}
# Hydra's helper processes are tasks of Slurm, one a node.
HELPER = {**SLURM_STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (HYDRA, FIFTH_OF_EIGHT),
        (OPEN_MPI, FIFTH_OF_EIGHT),
        (SLURM_STEP, FIFTH_OF_EIGHT),
        ({**HELPER, **HYDRA}, FIFTH_OF_EIGHT),
        (BATCH_SCRIPT, ProcessInfo(0, 1, 0, 1)),
        ({}, ProcessInfo(0, 1, 0, 1)),
    ],
)
def test_each_launcher_tells_the_place(environ, expected):
    assert placement.find_process_info({"PATH": "/bin", **environ}) == expected


def test_a_launcher_that_does_not_tell_the_place_is_refused():
    with pytest.raises(UserError, match="PMI_RANK is set"):
        placement.find_process_info({"PMI_RANK": "5", "PMI_SIZE": "8"})


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "0"}, "HOROVOD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE"),
        ({"HOROVOD_RANK": "1"}, "HOROVOD_RANK"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, "TF_CONFIG"),
    ],
)
def test_ranks_of_an_unknown_launcher_do_not_train_alone(environ, name):
    with pytest.raises(UserError, match=rf"^{name} .* mpirun -np 2 python .* unset"):
        placement.find_process_info(environ)
    assert placement.find_process_info({**environ, **HYDRA}) == FIFTH_OF_EIGHT
    assert placement.find_process_info(dict.fromkeys(environ, "0")) == ProcessInfo()


@pytest.mark.parametrize(
    ("tasks_per_node", "counts"),
    [("2(x3),1", [2, 2, 2, 1]), ("3", [3]), ("1,2(x2),5", [1, 2, 2, 5])],
)
def test_slurms_short_form_gives_the_tasks_of_each_node(tasks_per_node, counts):
    tasks = {**SLURM_STEP, "SLURM_STEP_TASKS_PER_NODE": tasks_per_node}
    for node, count in enumerate(counts):
        environ = {**tasks, "SLURM_NODEID": str(node)}
        assert placement.find_process_info(environ).num_local_ranks == count


def test_threads_are_one_a_core_unless_given():
    cores = [(0, 4), (1, 5)]
    assert placement.choose_threads(cores, 0, 0) == Threads((0, 4, 1, 5), 2, 1)
    assert placement.choose_threads(cores, 22, 2) == Threads((0, 4, 1, 5), 22, 2)


@pytest.mark.parametrize(
    ("quota", "num_threads"), [(0, 2), (0.5, 1), (1, 1), (1.5, 2), (9, 2)]
)
def test_a_cpu_quota_limits_the_threads_by_default(quota, num_threads):
    cores = [(0,), (1,)]
    threads = placement.choose_threads(cores, 0, 0, quota)
    assert (threads.cpus, threads.num_intra_threads) == ((0, 1), num_threads)
    assert placement.choose_threads(cores, 3, 0, quota).num_intra_threads == 3


def test_the_last_free_core_is_for_communication():
    cores = [(core, core + 48) for core in range(24, 48)]
    assert placement.choose_threads(cores, 22, 2).communication_cpu == 47
    threads = Threads((0, 1), 1, 1, communication_cpu=1)
    settings = placement.environment(threads, 1, False, {}, num_local_ranks=3)
    # Horovod takes the processor at the index of the rank on the node.
    assert settings["HOROVOD_THREAD_AFFINITY"] == "1,1,1"
    assert "HOROVOD_THREAD_AFFINITY" not in placement.environment(THREADS, 1, False, {})


THREADS = Threads((0, 1), num_intra_threads=22, num_inter_threads=2)


def test_the_environment_is_that_of_the_published_run():
    environ = {"TF_NUM_INTRAOP_THREADS": "7", "TF_NUM_INTEROP_THREADS": "7"}
    settings = placement.environment(THREADS, 1, False, environ)
    assert settings["OMP_NUM_THREADS"] == "22"
    assert settings["KMP_BLOCKTIME"] == "1"
    assert settings["TF_NUM_INTRAOP_THREADS"] == "22"  # Those of the flags.
    assert settings["TF_NUM_INTEROP_THREADS"] == "2"
    assert "ONEDNN_MAX_CPU_ISA" not in settings
    hidden = placement.environment(THREADS, 1, True, {})
    assert hidden["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"


def test_openmp_is_told_from_the_libraries_in_memory(tmp_path):
    path = tmp_path / "maps"
    assert not placement.openmp_is_loaded(path)
    for library, expected in (("libiomp5.so", True), ("libc.so.6", False)):
        path.write_text(f"7f00-7f01 r-xp 0 0:0 1 /opt/lib/{library}\n")
        assert placement.openmp_is_loaded(path) is expected
