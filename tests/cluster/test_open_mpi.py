"""Debian's Open MPI runs the planned commands."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import plan, topology
from launch.commands import Labels
from launch.dialects import DIALECTS
from tests.in_process import run, succeeded
from tests.processes import completed

pytestmark = pytest.mark.cluster

NODE = topology.probe()
OWN_CORES = str(Path(__file__).with_name("own_cores.py"))
RUN = ("--recipe=digits", "--train_batch_size=720", "--launcher=openmpi")


def planned(*flags: str) -> dict:
    return json.loads(succeeded(run(plan, *flags, "--print=json")).stdout)


def launched(
    words: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess:
    return succeeded(completed(words, env=environment))


@pytest.mark.parametrize("ranks_per_node", range(1, min(len(NODE.cores), 6) + 1))
def test_the_ranks_of_this_machine_have_the_planned_cores(open_mpi, ranks_per_node):
    values = planned("--probe", f"--ranks_per_node={ranks_per_node}", *RUN)
    words = values["command"]
    if ranks_per_node == 1:
        assert words[0] == "python"  # Nothing to launch.
        return
    words[words.index("python") :] = [sys.executable, OWN_CORES]
    lines = launched(words, open_mpi).stdout.splitlines()
    ranks = sorted(json.loads(line) for line in lines)
    assert [rank[:3] for rank in ranks] == [
        [rank, ranks_per_node, rank] for rank in range(ranks_per_node)
    ]
    for (*_, cpus), cores in zip(ranks, values["layout"]["cores"], strict=True):
        assert cpus == sorted(cpu for core in cores for cpu in core["cpus"])


def test_the_hosts_of_a_file_are_probed_and_have_the_ranks(
    open_mpi, tmp_path, monkeypatch
):
    """The file names this machine, as Open MPI's remote start needs a second one."""
    for name, value in open_mpi.items():
        monkeypatch.setenv(name, value)
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")
    ranks = min(len(NODE.cores), 2)
    flags = ("--probe", f"--hosts={hosts}", f"--ranks_per_node={ranks}", *RUN)
    values = planned(*flags)
    assert values["topology"]["hosts"] == ["localhost"]
    assert len(values["topology"]["cores"]) == len(NODE.cores)
    words = values["command"]
    if ranks == 1:
        pytest.skip("needs a second core")
    assert words[1:3] == ["--hostfile", str(hosts)]
    words[words.index("python") :] = [sys.executable, OWN_CORES]
    assert len(launched(words, open_mpi).stdout.splitlines()) == ranks


def test_another_host_looks_for_python_in_the_path_of_this_one(open_mpi, tmp_path):
    """A stand-in for ssh starts the remote side on this machine, with another PATH."""
    agent, python = tmp_path / "agent", tmp_path / "venv/python"
    programs = (Path(open_mpi["PATH"].partition(":")[0]) / "mpirun").resolve().parent
    agent.write_text(f'#!/bin/sh\nshift\nPATH={programs}:/usr/bin:/bin; eval "$*"\n')
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho of the environment\n")
    for program in (agent, python):
        program.chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("10.99.0.1 slots=2\n")
    nodes = ("--sockets=1", "--cores_per_socket=2", "--ranks_per_node=2")
    words = planned(*nodes, f"--hosts={hosts}", *RUN)["command"]
    path = f"{python.parent}:{open_mpi['PATH']}"
    environment = {**open_mpi, "PATH": path, "OMPI_MCA_plm_rsh_agent": str(agent)}
    assert launched(words, environment).stdout == "of the environment\n" * 2


def test_rank_and_host_stand_in_front_of_each_line(open_mpi):
    words = planned("--probe", "--ranks_per_node=2", *RUN)["command"]
    if words[0] == "python":
        pytest.skip("needs a second core")
    text = "echo one; echo two of $OMPI_COMM_WORLD_RANK; printf three"
    words[words.index("python") :] = ["sh", "-c", text]
    options = DIALECTS["openmpi"].label_options
    done = launched([words[0], *options, *words[1:]], open_mpi)
    labels = Labels(DIALECTS["openmpi"].label, {0: "a", 1: "b"})
    lines = (labels.translate(done.stdout.encode()) + labels.rest()).decode()
    expected = ["[0 a] one", "[0 a] two of 0", "[0 a] three"]
    expected += ["[1 b] one", "[1 b] two of 1", "[1 b] three"]
    assert sorted(lines.splitlines()) == sorted(expected)


def nodes_of_ranks(
    words: list[str], environment: dict[str, str], tmp_path: Path
) -> dict[str, list[int]]:
    """Returns the ranks on each of 256 nodes, as Open MPI maps them.

    The nodes don't exist, so it maps the ranks without launching them, and then fails
    for want of the nodes.
    """
    hosts = tmp_path / "hosts"
    names = [f"10.99.0.{number}" for number in range(256)]  # No names to look up.
    hosts.write_text("".join(f"{name} slots=8\n" for name in names))
    shown = ["--novm", "--do-not-launch", "--display-devel-map", "--hostfile"]
    words = [words[0], *shown, str(hosts), *words[1:]]
    done = completed(words, env=environment)
    found: dict[str, list[int]] = {}
    node = ""
    for line in done.stdout.splitlines():
        if match := re.search(r"Data for node: (\S+)", line):
            node = match[1]
        elif match := re.search(r"Data for proc: \[\[\d+,\d+\],(\d+)\]", line):
            found.setdefault(node, []).append(int(match[1]))
    assert found, done.stderr
    return found


def test_the_published_run_has_two_ranks_on_each_node(open_mpi, tmp_path):
    flags = ("--num_nodes=256", "--sockets=2", "--cores_per_socket=24")
    words = planned(*flags, "--launcher=openmpi")["command"]
    words[words.index("python") :] = ["true"]
    found = nodes_of_ranks(words, open_mpi, tmp_path)
    expected = {f"10.99.0.{node}": [2 * node, 2 * node + 1] for node in range(256)}
    assert found == expected


def test_servers_and_workers_go_round_the_nodes(open_mpi, tmp_path):
    flags = ("--num_nodes=256", "--sockets=2", "--cores_per_socket=24")
    run_flags = ("--recipe=imagenet_inception_async", "--train_batch_size=5120")
    job = ("--job=parameter_server", "--launcher=openmpi")
    words = planned(*flags, *run_flags, *job)["command"]
    words[words.index("python") :] = ["true"]
    found = nodes_of_ranks(words, open_mpi, tmp_path)
    expected = {f"10.99.0.{n}": [n, 256 + n, 512 + n] for n in range(256)}
    assert found == expected
