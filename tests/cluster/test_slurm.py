"""Debian's Slurm parses the batch files, and runs planned jobs on this machine."""

import json
import re
import sys
from pathlib import Path

import pytest

from launch import plan, topology
from launch.commands import Labels
from launch.dialects import DIALECTS
from tests.in_process import run, succeeded
from tests.processes import write_program

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = topology.probe()
RUN = ("--recipe=digits", "--train_batch_size=720", "--launcher=slurm")
CLUSTER = ("--num_nodes=256", "--sockets=2", "--cores_per_socket=24")
SERVERS = (
    *("--job=parameter_server", "--recipe=imagenet_inception_async"),
    "--train_batch_size=5120",
)
# A training that is asked to stop saves, and resumes when the job starts again.
TRAINING = """#!/bin/bash
case $1 in *.py) ;; *) exec {python} "$@" ;; esac
trap 'echo "saved"; exit 75' USR1
echo "start ${{SLURM_RESTART_COUNT:-0}} of ${{1##*/}} as rank ${{PMI_RANK:-none}}"
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit 0
while :; do sleep 0.1; done
"""


def printed(*flags: str) -> str:
    return succeeded(run(plan, *flags)).stdout


def submitted(slurm, path: Path, *options: str, **variables: str) -> dict[str, str]:
    """Submits a batch file; returns what Slurm knows of the job."""
    words = ("sbatch", "--parsable", *options, str(path))
    done = succeeded(slurm.run(*words, env={**slurm.environment, **variables}))
    return slurm.job(done.stdout.strip())


@pytest.mark.parametrize(
    ("name", "nodes", "tasks", "cpus", "limit"),
    [
        ("train_256_nodes_24k", 256, 512, 24, "04:00:00"),
        ("train_64_nodes_collapse", 64, 128, 24, "12:00:00"),
        ("eval_one_node", 1, 1, 48, "01:00:00"),
    ],
)
def test_slurm_reads_the_ready_scripts(slurm, name, nodes, tasks, cpus, limit):
    path = REPOSITORY / f"launch/jobs/{name}.slurm"
    found = submitted(slurm, path, "--hold")
    assert found["NumNodes"] in (f"{nodes}", f"{nodes}-{nodes}")
    assert (found["NumTasks"], found["CPUs/Task"]) == (f"{tasks}", f"{cpus}")
    assert (found["TimeLimit"], found["Requeue"]) == (limit, "1")
    assert found["Partition"] == "normal"
    assert slurm.run("scancel", found["JobId"]).returncode == 0


def test_slurm_reads_the_script_of_servers(slurm, tmp_path):
    flags = ("--launcher=slurm", "--partition=normal", "--print=script")
    path = tmp_path / "servers.slurm"
    path.write_text(printed(*CLUSTER, *SERVERS, *flags))
    found = submitted(slurm, path, "--hold")
    assert (found["NumTasks"], found["CPUs/Task"]) == ("768", "16")
    slurm.run("scancel", found["JobId"])


@pytest.mark.parametrize(
    ("mpi", "flags"), [("pmi2", ()), ("pmix", ()), ("pmi2", SERVERS)]
)
def test_srun_reads_the_commands_of_a_cluster(slurm, mpi, flags):
    known = ("--launcher=slurm", f"--srun_mpi={mpi}", "--print=json")
    words = json.loads(printed(*CLUSTER, *flags, *known))["command"]
    assert ("--distribution=cyclic" in words) == bool(flags)
    words[1:1] = ["--test-only", "--partition=normal", "--exclusive"]
    done = slurm.run(*words)
    if mpi == "pmix" and "can not load PMIx library" in done.stderr:
        pytest.skip("Slurm loads PMIx from /usr only: apt-get install libpmix-dev")
    assert done.returncode == 0, done.stderr
    assert re.search(r"using 12288 processors on nodes n\[1-256\]", done.stderr)


@pytest.mark.parametrize("ranks_per_node", range(1, min(len(NODE.cores), 6) + 1))
def test_srun_starts_ranks_with_the_planned_cores(slurm, ranks_per_node):
    ranks = f"--ranks_per_node={ranks_per_node}"
    flags = ("--probe", *RUN, "--srun_mpi=pmi2", ranks, "--print=json")
    values = json.loads(printed(*flags))
    words = values["command"]
    program = words.index("python")
    binding = str(REPOSITORY / "tests/jobs/print_binding.py")
    # The libraries of unpacked programs aren't those of this environment's MPI.
    python = ["env", "-u", "LD_LIBRARY_PATH", sys.executable]
    words[program : program + 2] = [*python, binding]
    done = succeeded(slurm.run(*words))
    found = json.loads(done.stdout)
    assert len(found) == ranks_per_node
    for one in found:
        cores = values["layout"]["cores"][one["local_rank"]]
        assert one["cpus"] == sorted(cpu for core in cores for cpu in core["cpus"])


def test_srun_probes_the_nodes_of_an_allocation(slurm, tmp_path):
    """Outside of one, Slurm gives a task that asks for nothing a single processor."""
    (tmp_path / "hosts").write_text("here\n")
    program = [sys.executable, str(REPOSITORY / "launch/plan.py")]
    flags = ("--probe", f"--hosts={tmp_path}/hosts", *RUN, "--print=json")
    done = succeeded(slurm.run("salloc", "--exclusive", "--nodes=1", *program, *flags))
    found = json.loads(done.stdout)["topology"]
    assert found["hosts"] == ["here"]
    assert len(found["cores"]) == len(NODE.cores)


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_job_saves_before_its_limit_is_requeued_and_resumes(
    slurm, tmp_path, launcher
):
    programs = tmp_path / "venv/bin"
    programs.mkdir(parents=True)
    (tmp_path / "out").mkdir()
    write_program((programs / "python"), TRAINING.format(python=sys.executable))
    ranks = min(len(NODE.cores), 2)
    flags = (*RUN, f"--ranks_per_node={ranks}", "--srun_mpi=pmi2")
    path = tmp_path / "job.slurm"
    limit = ("--time_limit=01:00", "--run_name=one", "--print=script")
    path.write_text(printed("--probe", *flags, *limit))
    output = tmp_path / "job.log"
    number = submitted(
        slurm,
        path,
        f"--output={output}",
        VENV=str(tmp_path / "venv"),
        OUTPUT_DIR=str(tmp_path / "out"),
        LAUNCHER=launcher,
    )["JobId"]
    started = [
        [f"start {n} of resnet_main.py as rank {rank}\n" for rank in range(ranks)]
        for n in (0, 1)
    ]
    slurm.wait_for(number, output, lambda _, log: all(s in log for s in started[0]))
    slurm.reach_limit(number, signal_seconds=120)
    slurm.restart(number, output)
    log = slurm.wait_for(number, output, lambda job, _: job["JobState"] == "COMPLETED")
    lines = log.splitlines(keepends=True)
    for first, second in zip(*started, strict=True):
        assert lines.index(first) < lines.index("saved\n") < lines.index(second), log
    assert lines.count("saved\n") == ranks


def test_rank_and_host_stand_in_front_of_each_line(slurm):
    text = "echo one; echo two of $SLURM_PROCID"
    place = ("--partition=here", "--ntasks=2", "--overcommit")
    done = slurm.run("srun", *DIALECTS["slurm"].label_options, *place, "sh", "-c", text)
    assert done.returncode == 0, done.stderr
    labels = Labels(DIALECTS["slurm"].label, {0: "a", 1: "b"})
    lines = (labels.translate(done.stdout.encode()) + labels.rest()).decode()
    expected = ["[0 a] one", "[0 a] two of 0", "[1 b] one", "[1 b] two of 1"]
    assert sorted(lines.splitlines()) == expected
