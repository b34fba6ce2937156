"""The program launch/plan.py: what it prints, and what it refuses."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from launch import hosts, plan, topology
from tests.in_process import Done, assert_refused, run, succeeded
from tests.processes import completed, write_program
from tests.unit import planning_page

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ("--num_nodes=256", "--sockets=2", "--cores_per_socket=24")
NODE = ("--sockets=2", "--cores_per_socket=8")


def test_the_published_cluster_arrives_at_the_published_command():
    done = run(plan, *CLUSTER, "--recipe=tpu_90ep_24k", "--launcher=mpich")
    assert (done.returncode, done.stderr) == (0, "")
    facts = re.sub(r"\s+", " ", done.stdout)
    for fact in (
        "512 = 256 nodes x 2",
        "24 cores: 22 intra-op and 2 inter-op threads; 2 left to communication",
        "24,576 = 512 ranks x 48",
        "4,680 = 89.77 epochs",
        "0.1 to 4.8 over 260 steps",
    ):
        assert fact in facts
    (published,) = re.findall(
        r"^    (mpirun -np 512 .*)$", (ROOT / "docs/slurm.md").read_text(), re.M
    )
    assert done.stdout.splitlines()[-1].strip() == published
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--recipe=imagenette", "--train_batch_size=512"), "--kmp_blocktime=7"),
        (("--train_batch_size=24576",), "--kmp_blocktime 7"),
        (("--job=eval",), "--kmp_blocktime 7"),
    ],
)
def test_the_command_has_the_time_that_openmp_threads_spin(flags, expected):
    done = run(plan, *CLUSTER, *flags, "--kmp_blocktime=7", "--print=command")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kmp_blocktime") == 1
    assert expected in done.stdout


def test_a_job_has_a_valid_name_wherever_the_run_is():
    script = ("--launcher=slurm", "--print=script")
    done = run(plan, *CLUSTER, *script, "--model_dir=/a/b c+d")
    assert "#SBATCH --job-name=b_c_d\n" in done.stdout
    assert "/b c+d}" in done.stdout


def test_servers_can_be_given_as_the_training_calls_them():
    job = ("--job=parameter_server", "--recipe=imagenet_inception_async")
    flags = (*NODE, *job, "--train_batch_size=96", "--print=command")
    done, other = (run(plan, *flags, servers) for servers in ("--num_ps=5", "-s=5"))
    assert "mpirun -np 8 " in done.stdout
    assert "--num_ps=5 " in done.stdout
    assert done == other


def test_this_machine_is_probed_and_its_file_gives_the_same_plan(tmp_path):
    probed = run(plan, "--probe", "--print=topology")
    assert (probed.returncode, probed.stderr) == (0, "")
    file = tmp_path / "node.json"
    file.write_text(probed.stdout)
    flags = ("--recipe=digits", "--train_batch_size=64", "--num_nodes=2")
    texts = [
        run(plan, source, *flags).stdout for source in ("--probe", f"--topology={file}")
    ]
    assert texts[0] == texts[1]
    words = re.sub(r"\s+", " ", texts[0])
    assert "read from this machine" in words
    assert "the 2 nodes are taken to be like this machine" in words


def test_a_set_without_training_images_can_be_evaluated(records, tmp_path):
    shutil.copytree(records, tmp_path / "records")
    path = tmp_path / "records" / "manifest.json"
    content = json.loads(path.read_text())
    del content["splits"]["train"]
    path.write_text(json.dumps(content))
    flags = ("--job=eval", "--recipe=digits", f"--data_dir={path.parent}")
    succeeded(run(plan, *NODE, *flags))


def test_the_number_of_examples_is_that_of_the_data_set(records):
    flags = ("--recipe=digits", "--train_batch_size=8", f"--data_dir={records}")
    numbers = json.loads(run(plan, *NODE, *flags, "--print=json").stdout)["numbers"]
    assert numbers["num_classes"] == 3
    assert numbers["num_steps"] == round(numbers["num_epochs"] * 24 / 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "got none"),
        ((*CLUSTER, "--probe"), "got --sockets and --cores_per_socket and --probe"),
        (("--sockets=2",), "got --sockets."),
        ((*NODE, "--num_nodes=0"), "--num_nodes must be at least 1; got 0"),
        ((*NODE, "--hosts=/nowhere"), "/nowhere: No such file"),
        (("--topology=/nowhere",), "/nowhere must hold the output of"),
        ((*CLUSTER, "--print=script", "--time_limit=4h"), "such as 04:00; got '4h'"),
        ((*CLUSTER, "--print=script", "--run_name=a b"), "the name of a job must"),
        ((*CLUSTER, "--print=script", "--stage_from=/s"), "needs --data_dir"),
        ((*NODE, "--recipe=own"), "follows from the data set: it needs a --data_dir"),
        ((*NODE, "--recipe=finetune"), "needs --initial_weights"),
        ((*CLUSTER, "--job=eval", "--seed=3"), "no flags of a training; got --seed=3"),
        ((*NODE, "--num_ps=3"), "got --num_servers=3 with --job=train"),
        (("--probe", "--memory_gb=64"), "already describes the nodes; got --memory_gb"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, message):
    assert_refused(run(plan, *arguments), message)


def hosts_file(tmp_path, *names):
    file = tmp_path / "hosts"
    file.write_text("".join(f"{name}\n" for name in names))
    return f"--hosts={file}"


def test_the_hosts_are_the_nodes(tmp_path):
    names = hosts_file(tmp_path, "a:2", "b", "# c")
    flags = ("--recipe=digits", "--train_batch_size=64", "--print=json")
    values = json.loads(run(plan, *NODE, names, *flags).stdout)
    assert values["num_processes"] == 4
    assert values["command"][1:3] == ["-f", names.removeprefix("--hosts=")]
    assert_refused(run(plan, *NODE, names, "--num_nodes=3"), "got 3 and 2 hosts")
    assert_refused(run(plan, *NODE, hosts_file(tmp_path, "a", "a")), "names one twice")
    assert_refused(run(plan, *NODE, hosts_file(tmp_path)), "it names none")


# It takes the form of Hydra for one host, and answers with a file of its name.
STUB = """#!/bin/sh
[ "$1 $3 $4" = "-hosts -np 1" ] || exit 9
case "$*" in *"/launch/plan.py --probe --print=host"*) ;; *) exit 8 ;; esac
cat "{folder}/$2.json" || exit 7
"""


def host_report(num_cores: int) -> str:
    report = hosts.HostReport(topology.stated(1, 1, num_cores), "id", {}, "", "")
    return json.dumps(dataclasses.asdict(report))


@pytest.fixture
def probe_all(tmp_path, monkeypatch):
    """Returns a function that plans for hosts with these numbers of cores."""
    write_program(tmp_path / "mpirun", STUB.format(folder=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def probe_them(*missing: str, **cores: int) -> Done:
        for name, number in cores.items():
            (tmp_path / f"{name}.json").write_text(host_report(number))
        flags = ("--recipe=digits", "--train_batch_size=64", "--print=json")
        return run(plan, "--probe", hosts_file(tmp_path, *cores, *missing), *flags)

    return probe_them


def test_every_host_of_a_file_is_probed(probe_all):
    done = succeeded(probe_all(a=8, b=8, c=8, d=8))
    values = json.loads(done.stdout)
    assert values["num_processes"] == 4
    assert values["topology"]["hosts"] == ["a", "b", "c", "d"]
    assert values["topology"]["source"] == "read from 4 hosts"
    differ = "a and b differ in their usable cores (8 and 6)"
    assert_refused(probe_all(a=8, b=6), differ)
    assert_refused(probe_all("far", a=8), "far can't be probed by `mpirun -hosts far")


def test_srun_probes_a_host_without_the_limits_of_a_rank(tmp_path, monkeypatch):
    node = tmp_path / "node.json"
    node.write_text(host_report(8))
    write_program(
        tmp_path / "srun", f"#!/bin/sh\nenv | grep -q _PER_TASK || cat {node}\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SRUN_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "2")
    flags = ("--launcher=slurm", "--recipe=digits", "--train_batch_size=64")
    done = run(plan, "--probe", hosts_file(tmp_path, "a"), *flags, "--print=command")
    assert done.returncode == 0, done.stderr
    assert "--cpus-per-task=8" in done.stdout


def test_a_launcher_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for launcher, program in (("mpich", "mpirun"), ("lsf", "blaunch")):
        names = hosts_file(tmp_path, "a")
        done = run(plan, "--probe", names, f"--launcher={launcher}")
        expected = f"needs the program {program}, which can't be run: No such"
        assert_refused(done, expected)


def test_a_plan_imports_neither_numpy_nor_tensorflow_nor_mpi4py():
    code = "import runpy, sys; sys.argv = ['plan.py', *sys.argv[1:]]"
    code += (
        f"\ntry: runpy.run_path({str(ROOT / 'launch/plan.py')!r}, run_name='__main__')"
    )
    code += "\nfinally: print({'numpy', 'tensorflow', 'mpi4py'} & set(sys.modules))"
    words = [sys.executable, "-c", code, *CLUSTER]
    done = completed(words, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("words", planning_page.commands(), ids=" ".join)
def test_the_commands_of_the_page_run(words, tmp_path, monkeypatch, probe_all):
    monkeypatch.chdir(tmp_path)
    if ">" in words:
        words = words[: words.index(">")]
    if "--hosts=hosts" in words:
        assert probe_all(node0=8, node1=8).returncode == 0  # It writes the files.
        (tmp_path / "hosts").write_text("node0\nnode1\n")
    (tmp_path / "node.json").write_text(topology.to_json(topology.stated(1, 2, 24)))
    done = run(plan, *words[2:])
    assert (done.returncode, done.stderr) == (0, "")
