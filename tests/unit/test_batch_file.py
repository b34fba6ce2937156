"""Scripts of planned jobs: what they ask the scheduler for, and what they run."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from launch import plan
from launch.dialects import DIALECTS
from tests.in_process import run
from tests.processes import completed

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ("--num_nodes=4", "--sockets=2", "--cores_per_socket=24")
BASE = (*CLUSTER, "--recipe=imagenette", "--train_batch_size=256", "--print=script")
each_launcher = pytest.mark.parametrize("launcher", DIALECTS)


def script(*flags: str) -> str:
    done = run(plan, *BASE, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def options(text: str, word: str) -> list[str]:
    return re.findall(rf"^#{word} (.*)$", text, re.M)


def write_programs(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("mpirun", "mpiexec.hydra", "srun", "python"):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def site(tmp_path):
    """Returns a function that runs a script with programs that print their words."""
    out = tmp_path / "out"
    out.mkdir()
    write_programs(tmp_path / "venv/bin", 'echo "${0##*/} $*"')

    def run_it(text: str, *arguments: str, **variables: str) -> list[str]:
        file = tmp_path / "job"
        file.write_text(text)
        known = {"VENV": str(tmp_path / "venv"), "OUTPUT_DIR": str(out)}
        with subprocess.Popen(
            ["bash", str(file), *arguments],
            env={"PATH": os.defpath, **known, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as job:
            stdout, stderr = job.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)  # The clock of PBS, as PBS does it.
        assert (job.returncode, stderr) == (0, "")
        return stdout.splitlines()

    return run_it


@each_launcher
@pytest.mark.parametrize("job", ["train", "parameter_server"])
def test_a_script_runs_the_command_of_the_plan(launcher, job, site):
    text = script(f"--launcher={launcher}", f"--job={job}")
    of_intel = {"I_MPI_ROOT": "/opt"} if launcher == "intelmpi" else {}
    (line,) = site(text, "--seed=3", DATA_DIR="/d", MODEL_DIR="/m", **of_intel)
    by_default = launcher.replace("slurm", "mpich")  # Slurm has mpirun by default.
    flags = (f"--launcher={by_default}", f"--job={job}", "--print=command")
    done = run(plan, *BASE[:-1], *flags, "--data_dir=/d", "--model_dir=/m")
    command = done.stdout.strip().replace("-genv I_MPI_PIN off ", "")  # Exported.
    here = command.replace("resnet/resnet_main.py", f"{ROOT}/resnet/resnet_main.py")
    assert line == f"{here} --seed=3"


@each_launcher
def test_intel_mpi_pins_no_rank(launcher, site, tmp_path):
    text = script(f"--launcher={launcher}", "--num_nodes=1", "--ranks_per_node=2")
    write_programs(tmp_path / "venv/bin", 'echo "pin $I_MPI_PIN"')
    assert site(text) == ["pin off"]
    assert site(text, I_MPI_PIN="on") == ["pin on"]


def test_open_mpi_passes_on_the_environment_as_other_launchers_do(site):
    text = script("--launcher=openmpi", "--stage_from=/shared", "--data_dir=/local")
    variables = {"UCX_TLS": "tcp", "LD_LIBRARY_PATH": "/a b", "SECRET": "no"}
    lines = site(text, **variables)
    assert len(lines) == 2
    for line in lines:  # Both programs look for `python` on the hosts.
        words = line.partition(" --bind-to none ")[2].split()[:6]
        pairs = {tuple(words[index : index + 2]) for index in (0, 2, 4)}
        names = ("PATH", "UCX_TLS", "LD_LIBRARY_PATH")
        assert pairs == {("-x", name) for name in names}
        assert "SECRET" not in line


def test_srun_starts_the_ranks_of_a_slurm_job_and_servers_in_turn(site):
    text = script("--launcher=slurm", "--srun_mpi=pmi2")
    assert "\nexport SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-pmi2}\n" in text
    (line,) = site(text, LAUNCHER="srun")
    start = "srun --ntasks=8 --cpu-bind=none --ntasks-per-node=2 python "
    assert line.startswith(start)
    text = script("--launcher=slurm", "--job=parameter_server")
    (line,) = site(text, LAUNCHER="srun")
    start = "srun --ntasks=12 --cpu-bind=none --distribution=cyclic python"
    assert line.startswith(start)


@pytest.mark.parametrize(
    ("launcher", "word", "expected"),
    [
        ("slurm", "SBATCH", "--partition=p --time=36:30:00 --nodes=4 --requeue"),
        ("lsf", "BSUB", '-q p|-W 36:30|-n 8|-wa USR1 -wt 2|-Q "75"'),
        ("pbs", "PBS", "-q p|-l walltime=36:30:00|-l select=4:ncpus=48:mpiprocs=2"),
    ],
)
def test_a_scheduler_is_asked_for_nodes_time_and_requeue(launcher, word, expected):
    text = script(f"--launcher={launcher}", "--partition=p", "--time_limit=36:30")
    wanted = expected.split("|" if "|" in expected else " ")
    assert set(wanted) <= set(options(text, word))


def test_a_job_of_pbs_runs_in_the_folder_in_which_it_was_submitted(site, tmp_path):
    (tmp_path / "submitted/runs").mkdir(parents=True)
    text = script("--launcher=pbs", "--model_dir=runs/one")
    folder = {"PBS_O_WORKDIR": str(tmp_path / "submitted"), "OUTPUT_DIR": ""}
    (line,) = site(text, **folder)
    assert line.endswith("--model_dir=runs/one")


def test_the_clock_of_pbs_counts_the_time_of_staging_and_signals_the_launcher(site):
    text = script("--launcher=pbs")
    (line,) = re.findall(r"^left=.*$", text, flags=re.M)
    for seconds, left in ((600, "85680"), (90_000, "0")):
        told = f"SECONDS={seconds}; {line}; echo $left"
        done = completed(["bash", "-c", told])
        assert done.stdout == f"{left}\n"
    text = re.sub(r"^left=.*$", "left=0.2", text, flags=re.M)
    caught = (
        """launcher=(bash -c 'trap "echo saved; exit" USR1; while :; do :; done')"""
    )
    text = re.sub(r"^launcher=.*$", lambda _: caught, text, flags=re.M)
    assert site(text) == ["saved"]


@pytest.mark.parametrize("launcher", ["lsf", "pbs"])
def test_a_hosts_file_with_a_blank_is_one_word(launcher, tmp_path):
    hosts = tmp_path / "my hosts"
    hosts.write_text("n1\nn2\n")
    text = script(f"--launcher={launcher}", f"--hosts={hosts}", "--num_nodes=2")
    (line,) = re.findall(r"^launcher=.*$", text, flags=re.M)
    told = f'{line}; printf "%s\\n" "${{launcher[@]}}"'
    done = completed(["bash", "-c", told])
    assert str(hosts) in done.stdout.splitlines()


@each_launcher
def test_records_are_staged_by_one_process_on_each_node(launcher, site):
    flags = ("--stage_from=/a b", "--data_dir=/local", f"--launcher={launcher}")
    for more, parts in ((), 1), (("--shard_by=file",), 4):
        text = script(*flags, *more)
        assert max(map(len, text.splitlines()[1:4])) <= 88
        first, second = site(text)
        assert first.endswith(f" {ROOT}/launch/jobs/stage.sh /a b /local {parts}")
        assert re.search(r"-np 4( -ppn 1| --map-by ppr:1:node)", first)
        assert {"--data_dir=/local", *more} <= set(second.split())


# Says what it runs, and runs what unpacks.
UNPACKING = """echo "${0##*/} $*"
case $* in *unpack.sh*) ;; *) exit ;; esac
while [ "${1##*/}" != unpack.sh ]; do shift; done
exec "$@"
"""


@pytest.fixture
def bundle(tmp_path) -> Path:
    """Returns an archive like those of `make bundle`, of programs that only print."""
    write_programs(tmp_path / "resnet-cpu/.venv/bin", 'echo "unpacked ${0##*/} $*"')
    archive = tmp_path / "one bundle.tar.gz"
    words = ["tar", "-czf", str(archive), "-C", str(tmp_path), "resnet-cpu"]
    subprocess.run(words, check=True)
    return archive


@each_launcher
def test_a_bundle_is_unpacked_on_each_node_and_the_job_runs_there(
    launcher, site, bundle, tmp_path
):
    write_programs(tmp_path / "venv/bin", UNPACKING)
    text = script(f"--launcher={launcher}", f"--bundle={bundle}")
    local = tmp_path / "local disk"
    unpacking, training = site(text, LOCAL_DIR=str(local))
    (folder,) = local.iterdir()
    program = f"{ROOT}/launch/jobs/unpack.sh {bundle} {folder}"
    assert re.search(rf"-np 4( -ppn 1| --map-by ppr:1:node).* {program}", unpacking)
    assert training.startswith("unpacked mpirun ")
    assert f" python {folder}/resnet-cpu/resnet/resnet_main.py " in training


def test_one_node_unpacks_and_copies_without_a_launcher(site, bundle, tmp_path):
    flags = ("--num_nodes=1", "--launcher=slurm")
    text = script(*flags, f"--bundle={bundle}")
    (training,) = site(text, LOCAL_DIR=str(tmp_path / "local"))
    assert training.startswith("unpacked mpirun -np 2 -ppn 2 python ")
    text = script(*flags, "--stage_from=/shared", "--data_dir=/local")
    assert '\nlauncher=()\n"${launcher[@]}" "$REPOSITORY/launch/jobs/stage.sh"' in text


def unpack(archive: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [ROOT / "launch/jobs/unpack.sh", archive, folder]
    return completed(words)


def test_an_archive_is_unpacked_once_whole_or_not_at_all(bundle, tmp_path):
    folder, content = tmp_path / "local/one", bundle.read_bytes()
    bundle.write_bytes(content[: len(content) // 2])
    assert unpack(bundle, folder).returncode != 0
    assert list(folder.parent.iterdir()) == []
    bundle.write_bytes(content)
    words = [ROOT / "launch/jobs/unpack.sh", bundle, folder]  # As jobs of a node may.
    jobs = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(4)]
    assert [job.communicate()[1] for job in jobs] == [b""] * 4
    assert [job.returncode for job in jobs] == [0] * 4
    bundle.write_text("no archive")
    assert unpack(bundle, folder).returncode == 0
    assert (folder / "resnet-cpu/.venv/bin/python").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["one"]
    assert [path.name for path in folder.iterdir()] == ["resnet-cpu"]


@pytest.mark.parametrize("name", ["local", "local/one"])
def test_a_folder_of_somebody_else_is_refused(name, bundle, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if os.geteuid() == 0:  # Root may give a folder away, others link to root's.
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 12345, -1)
    else:
        (tmp_path / name).symlink_to("/")
    done = unpack(bundle, tmp_path / "local/one")
    assert done.returncode == 2
    assert "belongs to somebody else: set LOCAL_DIR" in done.stderr
    assert f"{tmp_path}/{name} on" in done.stderr
    assert not (tmp_path / "local/one/resnet-cpu").exists()


def test_given_folders_and_hosts_are_the_defaults(site, tmp_path):
    (tmp_path / "hosts").write_text("a\nb\nc\nd\n")
    folder = tmp_path / "runs"
    flags = ("--data_dir=/some where", f"--model_dir={folder}/one")
    text = script(*flags, f"--hosts={tmp_path}/hosts")
    (line,) = site(text)
    assert line.startswith(f"mpirun -f {tmp_path}/hosts -np 8 -ppn 2 python")
    assert " --data_dir=/some where " in line
    assert f"OUTPUT_DIR=${{OUTPUT_DIR:-{folder}}}" in text
    assert line.endswith("/out/one")  # The environment's OUTPUT_DIR wins.


@pytest.mark.parametrize("name", ["one", 'my "run" `$1` \\{2}'])
def test_the_folder_of_a_run_is_that_of_model_dir_whatever_the_job_is_called(
    name, site, tmp_path
):
    folder = tmp_path / "some runs"
    folder.mkdir()
    text = script(f"--model_dir={folder}/{name}", "--run_name=exp", "--launcher=slurm")
    assert "--job-name=exp" in options(text, "SBATCH")
    (line,) = site(text, OUTPUT_DIR="")
    assert line.endswith(f"--model_dir={folder}/{name}")


@each_launcher
def test_a_single_rank_runs_on_the_host_of_the_file(launcher, site, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("node7\n")
    nodes = ("--num_nodes=1", "--ranks_per_node=1", f"--launcher={launcher}")
    staging = ("--stage_from=/shared", "--data_dir=/local")
    (line,) = site(script(*nodes))
    assert line.startswith("python ")
    first, second = site(script(*nodes, *staging, f"--hosts={hosts}"))
    assert re.match(rf"mpirun .*{hosts} -np 1 .*/stage.sh ", first)
    assert re.match(rf"mpirun .*{hosts} -np 1 .*/resnet_main.py ", second)
