"""The ready scripts give exactly the published commands, and resume under Slurm."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from launch import plan
from tests import in_process
from tests.in_process import succeeded
from tests.processes import completed

LAUNCH = Path(__file__).resolve().parents[2] / "launch" / "jobs"
NAMES = ("train_256_nodes_24k", "train_64_nodes_collapse", "eval_one_node")
# As it might be called on a cluster: with a space in it.
CLONE = "a clone"
STUB = 'printf "OMP_NUM_THREADS=%s\\n" "$OMP_NUM_THREADS"\n'
STUB += 'printf "%s\\n" "$(basename "$0")" "$@"'


@pytest.fixture
def site(tmp_path):
    """Returns a site with a clone, data, and programs that print their arguments."""
    for folder in ("records", "out put/model_batch_24k_90ep", f"{CLONE}/.venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / CLONE / "launch").symlink_to(LAUNCH.parent)
    for name in ("mpirun", "python", "srun", "scontrol"):
        write_program(tmp_path, name, STUB)
    return tmp_path


def write_program(site, name: str, text: str) -> None:
    path = site / CLONE / ".venv/bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def environment(site, **changes) -> dict[str, str]:
    known = {
        "PATH": os.defpath,
        "REPOSITORY": site / CLONE,
        "DATA_DIR": site / "records",
        "OUTPUT_DIR": site / "out put",
        **changes,
    }
    return {key: str(value) for key, value in known.items() if value is not None}


def run_script(site, name, *arguments, **changes):
    return completed(
        ["bash", str(LAUNCH / name), *arguments], env=environment(site, **changes)
    )


@pytest.mark.parametrize("suffix", ["sh", "slurm"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            NAMES[0],
            "OMP_NUM_THREADS= mpirun -np 512 -ppn 2 python C/resnet/resnet_main.py"
            " --train_batch_size 24576 --train_steps 4680 --num_intra_threads 22"
            " --num_inter_threads 2 --data_dir=D --model_dir=O/model_batch_24k_90ep"
            " --use_tpu=False --kmp_blocktime 1",
        ),
        (
            NAMES[1],
            "OMP_NUM_THREADS= mpirun -np 128 -ppn 2 python C/resnet/resnet_main.py"
            " --recipe=collapse_72ep_4k --num_intra_threads 22 --num_inter_threads 2"
            " --data_dir=D --model_dir=O/model_collapse_72ep",
        ),
        (
            NAMES[2],
            "OMP_NUM_THREADS=46 python C/eval/resnet_eval.py --eval_batch_size 200"
            " --num_intra_threads 46 --num_inter_threads 2 --data_dir=D"
            " --model_dir=O/model_batch_24k_90ep --use_tpu=False --kmp_blocktime 1",
        ),
    ],
)
def test_the_scripts_run_the_published_commands_and_hand_on_flags(
    site, name, expected, suffix
):
    flags = ["--seed=3", "--first_phase=some where"]
    result = succeeded(run_script(site, f"{name}.{suffix}", *flags))
    words = expected.split(" ")
    for letter, folder in (("C", CLONE), ("D", "records"), ("O", "out put")):
        pattern = rf"(^|=){letter}(/|$)"
        words = [re.sub(pattern, rf"\1{site}/{folder}\2", word) for word in words]
    assert result.stdout.splitlines() == words + flags


@pytest.mark.parametrize("name", NAMES)
def test_slurm_finds_the_clone_where_sbatch_was_called_or_the_file_is(site, name):
    changes = {"REPOSITORY": None, "SLURM_SUBMIT_DIR": site / CLONE}
    result = run_script(site, f"{name}.slurm", **changes)
    assert (result.returncode, f"{site}/{CLONE}/" in result.stdout) == (0, True)
    file = site / CLONE / f"launch/jobs/{name}.slurm"
    write_program(site, "scontrol", f'echo "JobId=17\n   Command={file} --seed=1"')
    changes |= {"SLURM_JOB_ID": 17, "SLURM_SUBMIT_DIR": site}
    path = f"{site}/{CLONE}/.venv/bin:{os.defpath}"
    result = run_script(site, f"{name}.slurm", PATH=path, **changes)
    assert (result.returncode, f"{site}/{CLONE}/" in result.stdout) == (0, True)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_folder_is_named_before_anything_runs(site, name):
    for suffix, changes, message in (
        (
            "slurm",
            {"REPOSITORY": None, "SLURM_SUBMIT_DIR": site},
            f"no clone of resnet-cpu in {site}: set REPOSITORY",
        ),
        ("sh", {"OUTPUT_DIR": site / "nowhere"}, f"{site}/nowhere"),
        ("sh", {"VENV": site / "nowhere"}, f"{site}/nowhere"),
    ):
        result = run_script(site, f"{name}.{suffix}", **changes)
        assert (result.returncode, result.stdout) == (2, "")
        assert message in result.stderr
        assert next(iter(changes)) in result.stderr
        assert len(result.stderr.splitlines()) == 1
    # Records on the disks of the nodes need not be here.
    result = run_script(site, f"{name}.sh", DATA_DIR="/local/records", MODEL_DIR="mine")
    assert result.returncode == 0, result.stderr
    assert {"--data_dir=/local/records", "--model_dir=mine"} <= set(
        result.stdout.splitlines()
    )


def test_the_processes_under_slurm_have_the_cores_of_a_rank_or_of_a_node(site):
    name = f"{NAMES[0]}.slurm"
    for program in ("srun", "mpirun"):
        write_program(site, program, 'echo "$1 $2 $SRUN_CPUS_PER_TASK"')
    changes = {"SLURM_CPUS_PER_TASK": 24, "SLURM_CPUS_ON_NODE": 48}
    assert run_script(site, name, **changes).stdout == "-np 512 48\n"
    result = run_script(site, name, SRUN_CPUS_PER_TASK=7, **changes)
    assert result.stdout == "-np 512 7\n"
    result = run_script(site, name, LAUNCHER="srun", **changes)
    assert result.stdout == "--ntasks=512 --cpu-bind=none 24\n"


def test_a_launcher_and_a_host_file_are_checked(site):
    name, hosts = f"{NAMES[0]}.sh", site / "host file"
    result = run_script(site, name, LAUNCHER="prun")
    assert (result.returncode, result.stdout) == (2, "")
    assert "LAUNCHER must be mpirun or srun; got prun." in result.stderr
    result = run_script(site, name, HOSTFILE=hosts)
    assert (result.returncode, "HOSTFILE" in result.stderr) == (2, True)
    hosts.write_text("node1\nnode2\n")
    result = run_script(site, name, HOSTFILE=hosts)
    assert result.stdout.splitlines()[1:6] == ["mpirun", "-f", str(hosts), "-np", "512"]


@pytest.mark.parametrize("suffix", ["sh", "slurm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_what_the_command_in_it_writes(name, suffix):
    text = (LAUNCH / f"{name}.{suffix}").read_text()
    (command,) = re.findall("^# Written by: python launch/plan.py (.*)$", text, re.M)
    done = in_process.run(plan, *shlex.split(command))
    assert done.stdout == text, "run `make scripts` and commit launch/jobs"


def test_scripts_are_valid_bash_and_stop_at_the_first_error():
    for path in (*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.slurm")):
        subprocess.run(["bash", "-n", str(path)], check=True, timeout=200)
        assert "\nset -euo pipefail\n" in path.read_text(), path
        assert os.access(path, os.X_OK), path


# As Hydra does, it tells by its exit code how the ranks have ended. It sleeps in the
# foreground, after which the shell looks for signals: `wait` would miss one that comes
# just before it.
WAITING = """
trap 'echo "USR1 came"; exit 75' USR1
trap 'echo "TERM came"; exit 75' TERM
echo up
while :; do sleep 0.1; done"""
TWICE = """
num=0; trap 'num=$((num + 1)); echo told $num' USR1
echo up
while [ $num != 2 ]; do sleep 0.1; done; sleep 0.2; exit 9"""


def test_the_demo_removes_what_an_earlier_one_made_alone(site):
    clone = site / CLONE
    demo = ["bash", clone / "launch/jobs/demo.sh"]
    (clone / "launch").unlink()
    shutil.copytree(LAUNCH, clone / "launch/jobs")
    done = completed(demo)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "run make demo" in done.stderr
    (clone / ".venv/bin/activate").write_text("PATH=$PWD/.venv/bin:$PATH\n")
    for name in ("model/checkpoints", "images/7", "records-model"):
        (clone / "demo-run" / name).mkdir(parents=True)
    (clone / "demo-run/eval.json").touch()
    done = succeeded(completed(demo))
    assert os.listdir(clone / "demo-run") == ["records-model"]
    assert "Removing demo-run/eval.json of the earlier demo" in done.stdout
    assert "records-model" not in done.stdout


@pytest.fixture
def start(site):
    """A function that starts a batch file with an mpirun and a scontrol of shell."""
    started = []

    def start_it(mpirun: str, scontrol: str = 'echo "scontrol $*"') -> subprocess.Popen:
        write_program(site, "mpirun", mpirun)
        write_program(site, "scontrol", scontrol)
        path = f"{site}/{CLONE}/.venv/bin:{os.defpath}"
        job = subprocess.Popen(
            ["bash", str(LAUNCH / f"{NAMES[0]}.slurm")],
            env=environment(site, PATH=path, SLURM_JOB_ID=17),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(job)
        return job

    yield start_it
    for job in started:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


# The signals go to the shell alone, as with Slurm's B:.
@pytest.mark.parametrize(
    ("mpirun", "signals", "code", "lines"),
    [
        (WAITING, {signal.SIGUSR1: "USR1 came"}, 75, ["scontrol requeue 17"]),
        (WAITING, {signal.SIGTERM: "TERM came"}, 75, []),
        ("exit 75", {}, 75, ["scontrol requeue 17"]),  # Told by somebody else.
        ("exit 0", {}, 0, []),
        ("exit 2", {}, 2, []),
        ("exit 137", {}, 137, []),
    ],
)
def test_a_job_is_queued_again_only_before_its_time_limit(
    start, mpirun, signals, code, lines
):
    job = start(mpirun)
    for number, answer in signals.items():
        assert job.stdout.readline() == "up\n"
        job.send_signal(number)
        lines = [answer, *lines]
    output, error = job.communicate(timeout=200)
    assert (job.returncode, output.splitlines(), error) == (code, lines, "")


def test_the_code_is_the_trainings_and_not_that_of_the_signal(start):
    job = start(TWICE)
    for line in ("up\n", "told 1\n"):
        assert job.stdout.readline() == line
        job.send_signal(signal.SIGUSR1)
    output, _ = job.communicate(timeout=200)
    assert (job.returncode, output) == (9, "told 2\n")


def test_a_queue_that_refuses_is_said(start):
    job = start("exit 75", scontrol="exit 1")
    _, error = job.communicate(timeout=200)
    assert job.returncode == 75
    assert "the job can't be requeued" in error
