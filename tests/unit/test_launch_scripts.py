"""The ready scripts give exactly the published commands."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from launch import plan
from tests import in_process

LAUNCH = Path(__file__).resolve().parents[2] / "launch" / "jobs"
NAMES = ("train_256_nodes_24k", "train_64_nodes_collapse", "eval_one_node")
SCRIPTS = sorted([*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.slurm")])
# As it might be called on a cluster: with a space in it.
CLONE = "a clone"


@pytest.fixture
def site(tmp_path):
    """Returns a site with a clone, data, and programs that print their arguments."""
    for folder in ("records", "out put/model_batch_24k_90ep", f"{CLONE}/.venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / CLONE / "launch").symlink_to(LAUNCH.parent)
    stub = '#!/bin/sh\nprintf "OMP_NUM_THREADS=%s\\n" "$OMP_NUM_THREADS"\n'
    stub += 'printf "%s\\n" "$(basename "$0")" "$@"\n'
    for name in ("mpirun", "python", "srun", "scontrol"):
        path = tmp_path / CLONE / ".venv/bin" / name
        path.write_text(stub)
        path.chmod(0o755)
    return tmp_path


def run_script(site, name, *arguments, **changes):
    environment = {
        "PATH": os.defpath,
        "REPOSITORY": str(site / CLONE),
        "DATA_DIR": str(site / "records"),
        "OUTPUT_DIR": str(site / "out put"),
    }
    environment |= {key: str(value) for key, value in changes.items()}
    return subprocess.run(
        ["bash", str(LAUNCH / name), *arguments],
        env={key: value for key, value in environment.items() if value != "None"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("suffix", ["sh", "slurm"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "train_256_nodes_24k",
            "OMP_NUM_THREADS= mpirun -np 512 -ppn 2 python C/resnet/resnet_main.py"
            " --train_batch_size 24576 --train_steps 4680 --num_intra_threads 22"
            " --num_inter_threads 2 --data_dir=D --model_dir=O/model_batch_24k_90ep"
            " --use_tpu=False --kmp_blocktime 1",
        ),
        (
            "train_64_nodes_collapse",
            "OMP_NUM_THREADS= mpirun -np 128 -ppn 2 python C/resnet/resnet_main.py"
            " --recipe=collapse_72ep_4k --num_intra_threads 22 --num_inter_threads 2"
            " --data_dir=D --model_dir=O/model_collapse_72ep",
        ),
        (
            "eval_one_node",
            "OMP_NUM_THREADS=46 python C/eval/resnet_eval.py --eval_batch_size 200"
            " --num_intra_threads 46 --num_inter_threads 2 --data_dir=D"
            " --model_dir=O/model_batch_24k_90ep --use_tpu=False --kmp_blocktime 1",
        ),
    ],
)
def test_the_scripts_run_the_published_commands(site, name, expected, suffix):
    result = run_script(site, f"{name}.{suffix}")
    assert result.returncode == 0, result.stderr
    words = expected.split(" ")
    for letter, folder in (("C", CLONE), ("D", "records"), ("O", "out put")):
        pattern = rf"(^|=){letter}(/|$)"
        words = [re.sub(pattern, rf"\1{site}/{folder}\2", word) for word in words]
    assert result.stdout.splitlines() == words


def test_a_phase_of_the_collapse_recipe_can_be_started_by_hand(site):
    flags = ("--first_phase=collapse", "--initial_weights=some where")
    script = "train_64_nodes_collapse"
    for suffix in ("sh", "slurm"):
        result = run_script(site, f"{script}.{suffix}", *flags, MODEL_DIR="mine")
        assert result.stdout.splitlines()[-3:] == ["--model_dir=mine", *flags]


@pytest.mark.parametrize("name", NAMES)
def test_slurm_finds_the_clone_where_sbatch_was_called(site, name):
    changes = {"REPOSITORY": None, "SLURM_SUBMIT_DIR": site / CLONE}
    result = run_script(site, f"{name}.slurm", **changes)
    assert result.returncode == 0, result.stderr
    assert f"{site}/{CLONE}/" in result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_slurm_finds_the_clone_of_a_file_that_is_named_from_elsewhere(site, name):
    file = site / CLONE / f"launch/jobs/{name}.slurm"
    answer = f'#!/bin/sh\necho "JobId=17\n   Command={file} --seed=1"\n'
    (site / CLONE / ".venv/bin/scontrol").write_text(answer)
    changes = {"REPOSITORY": None, "SLURM_JOB_ID": 17, "SLURM_SUBMIT_DIR": site}
    path = f"{site}/{CLONE}/.venv/bin:{os.defpath}"
    result = run_script(site, f"{name}.slurm", PATH=path, **changes)
    assert result.returncode == 0, result.stderr
    assert f"{site}/{CLONE}/" in result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_a_clone_is_refused(site, name):
    changes = {"REPOSITORY": None, "SLURM_SUBMIT_DIR": site}
    result = run_script(site, f"{name}.slurm", **changes)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"no clone of resnet-cpu in {site}: set REPOSITORY" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("suffix", ["sh", "slurm"])
@pytest.mark.parametrize("name", NAMES)
def test_flags_are_handed_to_the_program(site, name, suffix):
    result = run_script(site, f"{name}.{suffix}", "--seed=3", "--data_dir=a b")
    assert result.stdout.splitlines()[-2:] == ["--seed=3", "--data_dir=a b"]


@pytest.mark.parametrize("name", NAMES)
def test_records_on_the_disks_of_the_nodes_need_not_be_here(site, name):
    result = run_script(site, f"{name}.sh", DATA_DIR="/local/records")
    assert result.returncode == 0, result.stderr
    assert "--data_dir=/local/records" in result.stdout


@pytest.mark.parametrize("name", NAMES[:2])
def test_srun_can_start_the_ranks(site, name):
    srun = site / CLONE / ".venv/bin/srun"
    srun.write_text(srun.read_text() + 'echo "cores: $SRUN_CPUS_PER_TASK"\n')
    changes = {"LAUNCHER": "srun", "SLURM_CPUS_PER_TASK": 24, "SLURM_CPUS_ON_NODE": 48}
    result = run_script(site, f"{name}.sh", **changes)
    assert result.returncode == 0, result.stderr
    ranks = "--ntasks=512" if "256" in name else "--ntasks=128"
    lines = result.stdout.splitlines()
    expected = ["srun", ranks, "--cpu-bind=none", "--ntasks-per-node=2", "python"]
    assert lines[1:6] == expected
    assert lines[-1] == "cores: 24"


def test_the_processes_that_mpirun_starts_under_slurm_have_all_cores_of_a_node(site):
    mpirun = site / CLONE / ".venv/bin/mpirun"
    mpirun.write_text(mpirun.read_text() + 'echo "cores: $SRUN_CPUS_PER_TASK"\n')
    changes = {"SLURM_CPUS_PER_TASK": 24, "SLURM_CPUS_ON_NODE": 48}
    result = run_script(site, "train_256_nodes_24k.slurm", **changes)
    assert result.stdout.splitlines()[-1] == "cores: 48"
    result = run_script(
        site, "train_256_nodes_24k.slurm", SRUN_CPUS_PER_TASK=7, **changes
    )
    assert result.stdout.splitlines()[-1] == "cores: 7"


def test_an_unknown_launcher_is_refused(site):
    result = run_script(site, "train_256_nodes_24k.sh", LAUNCHER="prun")
    assert (result.returncode, result.stdout) == (2, "")
    assert "LAUNCHER must be mpirun or srun; got prun." in result.stderr


def test_a_host_file_is_handed_to_mpirun(site):
    hosts = site / "host file"
    hosts.write_text("node1\nnode2\n")
    result = run_script(site, "train_256_nodes_24k.sh", HOSTFILE=hosts)
    assert result.stdout.splitlines()[1:6] == ["mpirun", "-f", str(hosts), "-np", "512"]


@pytest.mark.parametrize("name", [f"{name}.sh" for name in NAMES])
@pytest.mark.parametrize("setting", ["OUTPUT_DIR", "VENV"])
def test_a_missing_folder_is_named_before_anything_runs(site, name, setting):
    result = run_script(site, name, **{setting: site / "nowhere"})
    assert result.returncode == 2
    assert result.stdout == ""
    assert str(site / "nowhere") in result.stderr
    assert setting in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_host_file_is_named(site):
    result = run_script(site, "train_256_nodes_24k.sh", HOSTFILE=site / "nowhere")
    assert result.returncode == 2
    assert "HOSTFILE" in result.stderr


@pytest.mark.parametrize("suffix", ["sh", "slurm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_what_the_command_in_it_writes(name, suffix):
    text = (LAUNCH / f"{name}.{suffix}").read_text()
    (command,) = re.findall("^# Written by: python launch/plan.py (.*)$", text, re.M)
    done = in_process.run(plan, *shlex.split(command))
    assert done.stdout == text, "run `make scripts` and commit launch/jobs"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_is_valid_bash_and_stops_at_the_first_error(path):
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=200)
    assert "\nset -euo pipefail\n" in path.read_text()
    assert os.access(path, os.X_OK)
