"""The command of a plan in the dialect of each launcher."""

import re

import pytest

from launch.nodes import probe, topology
from launch.planning import job_plan
from launch.planning.job_plan import Request
from resnet.base.errors import UserError
from resnet.config.recipes import RECIPES, imagenet
from tests.unit import machine_trees

PROGRAM = [
    *("python", "resnet/resnet_main.py", "--train_batch_size", "24576"),
    *("--train_steps", "4680", "--num_intra_threads", "22", "--num_inter_threads", "2"),
    *("--data_dir=RECORDS", "--model_dir=MODEL"),
    *("--use_tpu=False", "--kmp_blocktime", "1"),
]
CLUSTER = topology.stated(256, 2, 24)


def request(launcher="mpich", job="train", recipe=imagenet.TPU_90EP_24K, **others):
    overrides = others.pop("overrides", {})
    examples = recipe.num_train_examples
    return Request(job, launcher, recipe, recipe.name, overrides, examples, **others)


def command(nodes=CLUSTER, **changes):
    return job_plan.make(nodes, request(**changes)).command("RECORDS", "MODEL")


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("mpich", "mpirun -np 512 -ppn 2"),
        ("intelmpi", "mpirun -genv I_MPI_PIN off -np 512 -ppn 2"),
        ("openmpi", "mpirun -np 512 --map-by ppr:2:node --bind-to none -x PATH"),
        (
            "slurm",
            "srun --nodes=256 --ntasks=512 --ntasks-per-node=2 --cpus-per-task=24"
            " --cpu-bind=none",
        ),
        (
            "lsf",
            "mpirun -rmk lsf -launcher lsf -genv I_MPI_PIN off -np 512 -ppn 2",
        ),
        ("pbs", "mpirun -rmk pbs -genv I_MPI_PIN off -np 512 -ppn 2"),
    ],
)
def test_each_launcher_starts_the_published_command(launcher, words):
    assert command(launcher=launcher) == [*words.split(), *PROGRAM]


def test_a_hosts_file_is_named_in_each_way():
    words = command(launcher="mpich", hosts_file="a file")
    assert words[:5] == ["mpirun", "-f", "a file", "-np", "512"]
    words = command(launcher="openmpi", hosts_file="hosts")
    assert words[:3] == ["mpirun", "--hostfile", "hosts"]


def test_srun_starts_mpi_by_the_plugin_that_is_named():
    assert command(launcher="slurm", srun_mpi="pmix")[1] == "--mpi=pmix"


def test_slurm_is_asked_for_logical_processors():
    nodes = topology.stated(4, 2, 24, threads_per_core=2)
    assert "--cpus-per-task=48" in command(nodes, launcher="slurm", **FOUR_NODES)


FOUR_NODES = {"recipe": imagenet.COLLAPSE_72EP_4K}


def test_another_recipe_is_named_and_given_flags_are_passed_on():
    given = {"precision": "--precision=bf16", "seed": "--seed=2"}
    words = command(topology.stated(4, 2, 8), given=given, **FOUR_NODES)
    assert words[:5] == ["mpirun", "-np", "8", "-ppn", "2"]
    program = words[words.index("python") :]
    assert program[2:5] == ["--recipe=collapse_72ep_4k", "--precision=bf16", "--seed=2"]
    assert program[5:7] == ["--num_intra_threads", "7"]


def test_a_single_process_needs_no_launcher():
    words = command(topology.stated(1, 2, 24), job="eval", ranks_per_node=1)
    assert words == [
        *("python", "eval/resnet_eval.py", "--eval_batch_size", "200"),
        *("--num_intra_threads", "46", "--num_inter_threads", "2"),
        *("--data_dir=RECORDS", "--model_dir=MODEL"),
        *("--use_tpu=False", "--kmp_blocktime", "1"),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"launcher": "slurm"},
            "srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=24"
            " --cpu-bind=none",
        ),
        ({"launcher": "mpich", "hosts_file": "hosts"}, "mpirun -f hosts -np 1"),
        (
            {"launcher": "openmpi", "hosts_file": "hosts"},
            "mpirun --hostfile hosts -np 1 --map-by ppr:1:node --bind-to none -x PATH",
        ),
    ],
)
def test_a_single_process_on_another_host_needs_a_launcher(changes, words):
    launched = command(topology.stated(1, 1, 24), job="eval", **changes)
    assert launched[: launched.index("python")] == words.split()


def test_accumulation_is_in_the_command():
    nodes = topology.stated(256, 2, 24, memory_bytes=8 * 10**9)
    assert "--accumulation_steps=2" in command(nodes)


ASYNC = {
    "job": "parameter_server",
    "recipe": RECIPES["imagenet_inception_async"],
    "overrides": {"global_batch_size": 96},
}


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("mpich", "mpirun -np 12 -ppn 1"),
        ("openmpi", "mpirun -np 12 --map-by node --bind-to none -x PATH"),
        (
            "slurm",
            "srun --nodes=4 --ntasks=12 --ntasks-per-node=3 --cpus-per-task=5"
            " --cpu-bind=none --distribution=cyclic",
        ),
    ],
)
def test_servers_and_workers_go_round_the_nodes(launcher, words):
    nodes = topology.stated(4, 2, 8)
    plan = job_plan.make(nodes, request(launcher, **ASYNC))
    launched = plan.command("RECORDS", "MODEL")
    assert launched[: launched.index("python")] == words.split()
    assert {"--sync_mode=async", "--num_ps=3"} <= set(launched)
    assert plan.numbers.num_parts == 8
    assert not any("shared evenly" in one for one in plan.warnings)


def test_servers_that_are_uneven_are_said():
    nodes = topology.stated(4, 2, 8)
    changes = {**ASYNC, "num_servers": 2, "overrides": {"global_batch_size": 96}}
    plan = job_plan.make(nodes, request(**changes))
    (sentence,) = [one for one in plan.warnings if "shared evenly" in one]
    better = int(re.search(r"--num_servers=(\d+) avoids", sentence)[1])
    assert better == 3


@pytest.mark.parametrize(
    ("ranks", "others", "sentence"),
    [
        (
            3,
            {},
            "3 processes of a node 6 of its 20 processors, so that 2 are unused."
            " --ranks_per_node=2 avoids it",
        ),
        (
            2,
            {**ASYNC, "num_servers": 1},
            "4 processes of a node 5 of its 22 processors, so that 2 are unused."
            " --ranks_per_node=9 avoids it",
        ),
        (4, {}, ""),
    ],
)
def test_cores_that_srun_would_leave_unused_are_said(ranks, others, sentence):
    nodes = topology.stated(1, 1, 22 if others else 20)
    changes = {"ranks_per_node": ranks, "overrides": {"global_batch_size": 24}}
    for launcher, expected in (("slurm", sentence), ("mpich", "")):
        plan = job_plan.make(nodes, request(launcher, **{**others, **changes}))
        found = [one for one in plan.warnings if "are unused" in one]
        assert len(found) == bool(expected)
        assert not expected or expected in found[0]


def test_parameter_servers_need_an_asynchronous_training():
    changes = {**ASYNC, "overrides": {"sync_mode": "bsp"}}
    with pytest.raises(UserError, match="got --sync_mode=bsp"):
        job_plan.make(topology.stated(4, 2, 8), request(**changes))


def test_an_asynchronous_recipe_needs_servers():
    with pytest.raises(UserError, match="Use --job=parameter_server"):
        job_plan.make(
            topology.stated(1, 1, 8),
            request(recipe=RECIPES["imagenet_inception_async"]),
        )


def test_ranks_are_restricted_to_the_fast_cores(tmp_path):
    nodes = probe.probe(machine_trees.laptop(tmp_path))
    words = command(
        nodes, recipe=imagenet.TPU_90EP_24K, overrides={"global_batch_size": 64}
    )
    assert words[:4] == ["taskset", "-c", "0-11", "python"]


def test_the_last_core_of_each_rank_is_for_communication(tmp_path):
    nodes = probe.probe(machine_trees.two_sockets(tmp_path))
    plan = job_plan.make(nodes, request(overrides={"global_batch_size": 96}))
    assert job_plan.communication_cpus(plan.layout) == [46, 47]


def test_what_is_slow_is_said(tmp_path):
    nodes = topology.repeated(
        probe.probe(machine_trees.sub_numa_clusters(tmp_path)), 4, ()
    )
    plan = job_plan.make(nodes, request(**FOUR_NODES))
    assert any("--precision=bf16 is faster" in one for one in plan.warnings)
    node = machine_trees.write(
        tmp_path / "slow",
        [(0, 0, 0), (0, 0, 1)],
        files=machine_trees.interface("e", 1000),
        flags="fpu avx",
    )
    plan = job_plan.make(
        topology.repeated(probe.probe(node), 4, ()), request(**FOUR_NODES)
    )
    # 2 x 3/4 of 102.2 MB over 1 Gbit/s.
    assert any("take at least 1.2 s in each step" in one for one in plan.warnings)
    assert any("no AVX2" in one for one in plan.warnings)


def test_the_environment_is_what_a_rank_sets():
    variables = job_plan.make(CLUSTER, request()).environment
    assert variables["TF_NUM_INTRAOP_THREADS"] == "22"
    assert variables["OMP_NUM_THREADS"] == "22"
    assert "HOROVOD_THREAD_AFFINITY" not in variables  # It differs between ranks.
