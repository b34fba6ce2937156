"""Planned commands, run by the real Hydra: the ranks have the cores of the plan."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from launch import plan, topology
from tests import smallest
from tests.in_process import run, succeeded
from tests.jobs.conftest import MPIRUN, REPOSITORY
from tests.processes import completed, write_program

pytestmark = pytest.mark.multiprocess

NODE = topology.probe()
NUM_CORES = len(NODE.cores)
SOME_CORES = range(1, min(NUM_CORES, 6) + 1)
RUN = ("--recipe=digits", "--train_batch_size=720")  # 720: of up to 6 ranks.
# Hydra fails now and then if all processes of a host end while it still starts others.
STAY = "sleep 1"
# It does here what LSF's does on a host, whose shell reads the words as ssh's does.
BLAUNCH = '#!/bin/sh\n[ "$1" != -n ] || shift\nshift\nexec sh -c "$*"\n'


def planned(*flags: str) -> dict:
    """Returns a plan."""
    return json.loads(succeeded(run(plan, *flags, "--print=json")).stdout)


def launch(words: list[str], **environment: str) -> subprocess.CompletedProcess:
    """Runs a command with this environment's mpirun."""
    path = f"{MPIRUN.parent}:{os.environ['PATH']}"
    known = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "HYDRA_LAUNCHER": "fork"}
    return succeeded(completed(words, env={**os.environ, **known, **environment}))


def bound(values: dict, *flags: str, **environment: str) -> list[dict]:
    """Runs the command of a plan with another program; returns what ranks print."""
    words = values["command"]
    program = words.index("python")
    words[program : program + 2] = [
        sys.executable,
        str(REPOSITORY / "tests/jobs/print_binding.py"),
    ]
    return json.loads(launch([*words, *flags], **environment).stdout)


def assert_as_planned(values: dict, ranks: list[dict]) -> None:
    """Checks that each rank has the cores and threads of the plan."""
    layout = values["layout"]
    assert len(ranks) == values["num_processes"]
    for rank in ranks:
        cores = layout["cores"][rank["local_rank"]]
        assert rank["cpus"] == sorted(cpu for core in cores for cpu in core["cpus"])
        expected = [layout["num_intra_threads"], layout["num_inter_threads"]]
        assert rank["threads"] == expected


@pytest.mark.parametrize(
    ("launcher", "ranks_per_node"),
    [*(("mpich", number) for number in SOME_CORES), ("intelmpi", SOME_CORES[-1])],
)
def test_the_ranks_of_this_machine_have_the_planned_cores(launcher, ranks_per_node):
    ranks = f"--ranks_per_node={ranks_per_node}"
    values = planned("--probe", f"--launcher={launcher}", ranks, *RUN)
    assert_as_planned(values, bound(values))


@pytest.mark.parametrize("num_workers", SOME_CORES)
def test_workers_have_the_planned_cores_and_the_others_share_them(num_workers):
    flags = ("--recipe=imagenet_inception_async", f"--train_batch_size={num_workers}")
    workers = f"--ranks_per_node={num_workers}"
    values = planned("--probe", "--job=parameter_server", workers, *flags)
    ranks = bound(values)
    assert len(ranks) == num_workers + 2
    for helper in ranks[:2]:  # The coordinator and the server.
        assert helper["cpus"] == sorted(cpu for core in NODE.cores for cpu in core.cpus)
    for worker, cores in zip(ranks[2:], values["layout"]["cores"], strict=True):
        assert worker["cpus"] == sorted(cpu for core in cores for cpu in core["cpus"])


def test_hosts_are_probed_by_the_launcher(tmp_path, monkeypatch):
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HYDRA_LAUNCHER", "fork")
    values = planned("--probe", f"--hosts={hosts}", *RUN)
    assert values["topology"]["hosts"] == ["a", "b"]
    assert len(values["topology"]["cores"]) == NUM_CORES
    ranks = bound(values)
    assert_as_planned(values, ranks)
    assert {rank["local_rank"] for rank in ranks} < set(range(len(ranks)))


def test_a_job_of_lsf_runs_by_its_blaunch(tmp_path):
    write_program(tmp_path / "blaunch", BLAUNCH)
    values = planned("--probe", "--launcher=lsf", *RUN, "--ranks_per_node=2")
    job = {"LSB_MCPU_HOSTS": f"{os.uname().nodename} 2", "LSF_BINDIR": str(tmp_path)}
    path = f"{tmp_path}:{MPIRUN.parent}:{os.environ['PATH']}"
    assert_as_planned(values, bound(values, PATH=path, **job))


def test_a_job_of_pbs_runs_on_the_hosts_of_its_file(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\n")
    source = ("--sockets=1", f"--cores_per_socket={NUM_CORES}", "--num_nodes=2")
    values = planned(*source, "--launcher=pbs", "--ranks_per_node=2", *RUN)
    ranks = bound(values, PBS_NODEFILE=str(nodes))
    assert [rank["local_rank"] for rank in ranks] == [0, 1, 0, 1]


@pytest.mark.needs_cores(2)
def test_cores_that_are_left_out_are_not_used(tmp_path):
    slow = [dataclasses.replace(one, is_efficiency_core=True) for one in NODE.cores]
    node = dataclasses.replace(NODE, cores=(NODE.cores[0], *slow[1:]))
    file = tmp_path / "node.json"
    file.write_text(topology.to_json(node))
    values = planned(f"--topology={file}", *RUN)
    assert values["command"][0] == "taskset"
    (rank,) = bound(values)
    assert rank["cpus"] == list(NODE.cores[0].cpus)


@pytest.mark.slow
@pytest.mark.needs_cores(2)
def test_horovods_thread_is_on_the_core_that_is_left_for_it(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    node = tmp_path / "node.json"
    node.write_text(topology.to_json(NODE))
    source = (f"--topology={node}", f"--hosts={hosts}", "--ranks_per_node=1")
    values = planned(*source, *RUN, f"--num_intra_threads={NUM_CORES - 1}")
    (cpu,) = values["communication_cpus"]
    for rank in bound(values, "--horovod"):
        assert rank["others"] == [[cpu]]


@pytest.mark.parametrize("launcher", ["mpich", "intelmpi"])
def test_hydra_starts_all_ranks_of_a_cluster(launcher):
    """Here all ranks are on one machine, so there are few, and the program is small."""
    nodes = ("--num_nodes=16", "--sockets=2", "--cores_per_socket=24")
    flags = ("--recipe=imagenette", "--train_batch_size=256")
    values = planned(*nodes, *flags, f"--launcher={launcher}")
    words = values["command"]
    text = f"echo $PMI_RANK of $PMI_SIZE; {STAY}"
    words[words.index("python") :] = ["sh", "-c", text]
    lines = sorted(launch(words).stdout.splitlines())
    assert lines == sorted(f"{rank} of 32" for rank in range(32)), shlex.join(words)


def test_servers_and_workers_go_round_the_hosts(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\nc\nd\n")
    nodes = (f"--hosts={hosts}", "--sockets=2", "--cores_per_socket=8")
    flags = ("--recipe=imagenet_inception_async", "--train_batch_size=96")
    words = planned(*nodes, *flags, "--job=parameter_server")["command"]
    text = f"echo $PMI_RANK $PMI_HOSTNAME; {STAY}"
    words[words.index("python") :] = ["sh", "-c", text]
    lines = sorted(
        launch(words).stdout.splitlines(), key=lambda line: int(line.split()[0])
    )
    assert lines == [f"{rank} {'abcd'[rank % 4]}" for rank in range(12)]


def test_records_are_staged_by_hydra(records, tmp_path):
    """Two processes, as of two nodes, here into one folder: each copies its part."""
    local = tmp_path / "local"
    program = str(REPOSITORY / "launch/jobs/stage.sh")
    parts = [str(MPIRUN), "-np", "2", program, str(records), str(local), "2"]
    assert len(list(records.glob("validation/*"))) < 2
    refused = completed(parts)
    assert refused.returncode == 2
    assert "fewer than the 2 nodes" in refused.stderr
    launch([*parts[:2], "1", *parts[3:6], "1"])
    names = {path.name for path in records.rglob("*-of-*")}
    assert {path.name for path in local.rglob("*-of-*")} == names
    assert Path(local, "manifest.json").read_bytes()


@pytest.mark.slow
def test_a_planned_script_trains_and_a_planned_command_evaluates(records, tmp_path):
    (tmp_path / "runs").mkdir()
    nodes = ("--probe", f"--ranks_per_node={min(NUM_CORES, 2)}")
    folders = (f"--data_dir={records}", f"--model_dir={tmp_path}/runs/one")
    small = ("--image_size=32", "--train_batch_size=6", "--train_steps=2")
    flags = (*RUN[:1], smallest.FLAG, *small, "--warmup_steps=1", *folders)
    done = succeeded(run(plan, *nodes, *flags, "--print=script"))
    script = tmp_path / "job.sh"
    script.write_text(done.stdout)
    launch(["bash", str(script), "--seed=3"], VENV=sys.prefix)
    config = json.loads((tmp_path / "runs/one/config.json").read_text())
    assert (config["seed"], config["global_batch_size"]) == (3, 6)
    evaluation = run(plan, *nodes, "--job=eval", *folders, "--print=command")
    words = shlex.split(evaluation.stdout)
    program = words.index("python")
    words[program : program + 2] = [
        sys.executable,
        str(REPOSITORY / words[program + 1]),
    ]
    assert "top-1" in launch(words).stderr.lower()
