"""The commands of docs/slurm.md run under Debian's Slurm on this machine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import plan, topology
from tests import in_process, smallest
from tests.in_process import succeeded
from tests.jobs.test_pages import commands
from tests.processes import write_program

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = topology.probe()
OF_SLURM = ("sbatch", "srun", "salloc", "squeue", "scancel", "LAUNCHER=srun")
SAVING_SECONDS = 600  # Between signal and limit, for a starved machine too.
# The libraries of a Slurm that is unpacked aren't those of this environment's Python.
PYTHON = '#!/bin/sh\nunset LD_LIBRARY_PATH\nexec {program} "$@"\n'


@pytest.fixture
def environment(tmp_path) -> Path:
    """Returns a folder like .venv, with this environment's programs and a make."""
    programs = tmp_path / "venv/bin"
    programs.mkdir(parents=True)
    check = f"{REPOSITORY}/install/check.sh {tmp_path}/venv ranks"
    for name, text in {
        "python": PYTHON.format(program=sys.executable),
        "mpirun": f'#!/bin/sh\nexec {sys.prefix}/bin/mpirun "$@"\n',
        "make": f'#!/bin/sh\n[ "$*" = check ] && exec {check}\n',
    }.items():
        write_program((programs / name), text)
    return tmp_path / "venv"


def test_the_commands_of_the_page(slurm, environment, tmp_path):
    """Jobs for more nodes than there are stay held, until they are cancelled."""
    for name in ("launch", "resnet", "data_prep"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    variables = dict(slurm.environment)
    variables["PATH"] = f"{environment}/bin:{variables['PATH']}"
    submitted = []
    lines = [line for line in commands("slurm") if "plan.py" in line]
    lines += [line for line in commands("slurm") if line.startswith(OF_SLURM)]
    for line in dict.fromkeys(lines):
        line = line.replace("sbatch ", "sbatch --hold ")
        words = ["bash", "-euo", "pipefail", "-c", line]
        done = slurm.run(*words, cwd=tmp_path, env=variables)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        if "sbatch" in line:
            submitted.append(re.search(r"Submitted batch job (\d+)", done.stdout)[1])
        if line.endswith("node.json"):
            node = json.loads((tmp_path / "node.json").read_text())
            assert len(node["cores"]) == len(NODE.cores)  # Not only those of a task.
        if "make check" in line:
            assert "two ranks: the all-reduce works" in done.stdout
    assert len(submitted) == 3
    states = [slurm.run("squeue", "--me", "-h", "-o", "%i %T").stdout]
    assert f"{submitted[-1]} PENDING" in states[0]  # That of another name is left.
    slurm.run("scancel", *submitted)


def test_a_training_stops_at_its_limit_and_resumes(
    slurm, environment, tmp_path, records
):
    """The limit is brought near when the training has begun, however long that took."""
    flags = (smallest.FLAG, "--image_size=32", "--train_batch_size=6")
    folders = (f"--data_dir={records}", f"--model_dir={tmp_path}/run")
    length = ("--train_steps=10000000", "--warmup_steps=1", "--eval_every=100000epochs")
    words = ("--probe", "--recipe=digits", *flags, *folders, *length)
    done = succeeded(in_process.run(plan, *words, "--launcher=slurm", "--print=script"))
    (tmp_path / "job.slurm").write_text(done.stdout)
    variables = {**slurm.environment, "VENV": str(environment)}
    output = tmp_path / "job.log"
    limit = ("--time=60", f"--signal=B:USR1@{SAVING_SECONDS}", f"--output={output}")
    sbatch = ("sbatch", "--parsable", *limit, str(tmp_path / "job.slurm"))
    job = succeeded(slurm.run(*sbatch, env=variables))
    number = job.stdout.strip()
    slurm.wait_for(number, output, lambda _, log: re.search(r"^step \d+/", log, re.M))
    slurm.reach_limit(number, SAVING_SECONDS)
    slurm.restart(number, output)
    resumed = re.compile(r"Current step ([1-9]\d*)\.")
    log = slurm.wait_for(number, output, lambda _, log: resumed.search(log))
    slurm.cancel(number)
    assert "Current step 0." in log
    assert f"stopped after step {resumed.search(log)[1]}, which is saved" in log
    assert (tmp_path / "run/checkpoints").exists()


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_job_unpacks_its_archive_once_and_runs_from_there(slurm, tmp_path):
    place = tmp_path / "resnet-cpu/.venv/bin"
    place.mkdir(parents=True)
    write_program((place / "python"), '#!/bin/sh\necho "unpacked $1"\n')
    (tmp_path / "resnet-cpu/resnet").mkdir()
    archive = tmp_path / "resnet-cpu.tar.gz"
    tar = ["tar", "-czf", str(archive), "-C", str(tmp_path), "resnet-cpu"]
    subprocess.run(tar, check=True)
    ranks = ("--probe", "--ranks_per_node=1", "--recipe=digits", "--launcher=slurm")
    words = (*ranks, f"--bundle={archive}", "--print=script")
    done = succeeded(in_process.run(plan, *words))
    (tmp_path / "job.slurm").write_text(done.stdout)
    variables = {
        **slurm.environment,
        "VENV": str(Path(sys.prefix)),
        "OUTPUT_DIR": str(tmp_path),
        "LOCAL_DIR": str(tmp_path / "local"),
    }
    for number in range(2):
        output = tmp_path / f"{number}.log"
        sbatch = ["sbatch", "--wait", f"--output={output}", str(tmp_path / "job.slurm")]
        done = slurm.run(*sbatch, env=variables)
        assert done.returncode == 0, done.stderr + read(output)
        (folder,) = (tmp_path / "local").iterdir()
        program = f"{folder}/resnet-cpu/resnet/resnet_main.py"
        assert output.read_text().splitlines() == [f"unpacked {program}"]
