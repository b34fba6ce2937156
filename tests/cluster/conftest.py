"""Debian's Open MPI and Slurm on this machine.

They are installed (apt-get install openmpi-bin slurm-wlm libpmix-dev), or unpacked into
the folder CLUSTER_PROGRAMS by `dpkg -x`, which needs no root.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from launch import topology
from tests.jobs.conftest import MPIRUN, REPOSITORY
from tests.processes import write_program

_ROOT = Path(os.environ.get("CLUSTER_PROGRAMS", "/"))
_LIBRARIES = _ROOT / "usr/lib/x86_64-linux-gnu"
# What a starved machine may take; on another one nothing takes nearly as long.
_START_SECONDS = 120
_JOB_SECONDS = 600
# What launch/jobs/site.sh takes from the environment.
_OF_SITE = (
    *("DATA_DIR", "HOSTFILE", "LAUNCHER", "LOCAL_DIR", "MODEL_DIR", "OUTPUT_DIR"),
    *("REPOSITORY", "VENV"),
)
_ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
NODES = ("here", "there")  # Both are this machine.
# The libraries of a Slurm that is unpacked aren't those of this environment's MPI, but
# batch files need them for Slurm's own programs.
WITHOUT_LIBRARIES = "TASKS_WITHOUT_LIBRARIES"
_TASK_PROLOG = f"""#!/bin/sh
[ -z "${WITHOUT_LIBRARIES}" ] || echo unset LD_LIBRARY_PATH
"""
# The nodes of the published run exist in name only: as those of a cloud that are off.
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=5
MessageTimeout=60
TaskProlog={folder}/task_prolog
SlurmdParameters=config_overrides
NodeName=here NodeHostname={host} NodeAddr=127.0.0.1 Port={here_port} Sockets=1 \
CoresPerSocket={cores} ThreadsPerCore={threads}
NodeName=there NodeHostname={host} NodeAddr=127.0.0.1 Port={there_port} Sockets=1 \
CoresPerSocket={cores} ThreadsPerCore={threads}
NodeName=n[1-256] NodeAddr=127.0.0.2 Sockets=2 CoresPerSocket=24 State=CLOUD
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
SuspendExcNodes=here,there
PartitionName=here Nodes=here MaxTime=INFINITE Default=YES
PartitionName=both Nodes=here,there MaxTime=INFINITE
PartitionName=normal Nodes=n[1-256] MaxTime=INFINITE
"""


def _program(folder: str, name: str, package: str) -> Path:
    path = _ROOT / folder / name
    if not path.exists():
        pytest.skip(f"{path} is not there: apt-get install {package}")
    return path


def _environment(*folders: Path) -> dict[str, str]:
    """Returns the environment in which programs of these folders are found first."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for name in _OF_SITE:
        environment.pop(name, None)
    path = [*map(str, folders), str(MPIRUN.parent), os.environ["PATH"]]
    environment["PATH"] = ":".join(path)
    if Path("/") != _ROOT:
        folders = (
            *(_LIBRARIES, _LIBRARIES / "slurm-wlm", _LIBRARIES / "pmix2/lib"),
            _ROOT / "lib/x86_64-linux-gnu",
        )
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    return environment


@pytest.fixture(scope="session")
def open_mpi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns an environment whose mpirun is Open MPI's."""
    mpirun = _program("usr/bin", "mpirun.openmpi", "openmpi-bin")
    folder = tmp_path_factory.mktemp("open mpi")
    (folder / "mpirun").symlink_to(mpirun)
    environment = _environment(folder)
    environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    environment["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    if Path("/") != _ROOT:
        places = {
            "PREFIX": _LIBRARIES / "openmpi",
            "BINDIR": _ROOT / "usr/bin",
            "LIBDIR": _LIBRARIES,
            "PKGLIBDIR": _LIBRARIES / "openmpi/lib/openmpi3",
            "DATADIR": _ROOT / "usr/share",
            "PKGDATADIR": _ROOT / "usr/share/openmpi",
        }
        environment |= {f"OPAL_{name}": str(path) for name, path in places.items()}
    return environment


class Slurm:
    """A Slurm of two nodes, both this machine, and of 256 that don't answer.

    All tests share the environment of its programs, so that none may change it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        client = _program("usr/bin", "sbatch", "slurm-wlm")
        self._daemons: list[subprocess.Popen[bytes]] = []
        variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.environment: Mapping[str, str] = MappingProxyType(
            _environment(client.parent) | variables
        )

    def start(self) -> None:
        """Starts the daemons, and waits for the nodes."""
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        node = topology.probe()
        text = _CONFIG.format(
            host=socket.gethostname(),
            user=Path("/proc/self").owner(),
            folder=self.folder,
            plugins=_LIBRARIES / "slurm-wlm",
            controller_port=_free_port(),
            here_port=_free_port(),
            there_port=_free_port(),
            cores=node.num_installed_cores,
            threads=node.threads_per_core,
        )
        (self.folder / "slurm.conf").write_text(text)
        write_program((self.folder / "task_prolog"), _TASK_PROLOG)
        controller = _program("usr/sbin", "slurmctld-wlm", "slurmctld")
        node_daemon = _program("usr/sbin", "slurmd-wlm", "slurmd")
        step_daemon = _program("usr/sbin", "slurmstepd-wlm", "slurmd")
        self._run_daemon("controller", str(controller), "-D", "-i")
        for name in NODES:
            words = ("-D", "-N", name, "-d", str(step_daemon))
            self._run_daemon(name, str(node_daemon), *words)
        deadline = time.monotonic() + _START_SECONDS
        while self.run("sinfo", "-h", "-p", "both", "-o", "%T").stdout != "idle\n":
            if time.monotonic() > deadline:
                pytest.fail(f"Slurm has not started:\n{self.logs()}")
            time.sleep(0.2)

    def _run_daemon(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as output:
            daemon = subprocess.Popen(
                words,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(daemon)

    def logs(self) -> str:
        """Returns what the daemons have said."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(path.read_text() for path in paths)

    def run(self, *words: str, **given) -> subprocess.CompletedProcess[str]:
        """Runs a program of Slurm."""
        settings = {"env": self.environment, "timeout": _JOB_SECONDS, **given}
        return subprocess.run(words, capture_output=True, text=True, **settings)

    def job(self, number: str) -> dict[str, str]:
        """Returns what Slurm knows of a job."""
        text = self.run("scontrol", "show", "job", number).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def wait_for(
        self,
        number: str,
        output: Path,
        is_reached: Callable[[dict[str, str], str], object],
    ) -> str:
        """Waits for a state of a job; returns what the job has printed by then.

        `is_reached` gets what Slurm knows of the job, and what is in its output.
        """
        deadline = time.monotonic() + _JOB_SECONDS
        while True:
            job = self.job(number)
            printed = output.read_text() if output.exists() else ""
            printed = printed[: printed.rfind("\n") + 1]  # Lines that are complete.
            if is_reached(job, printed):
                return printed
            has_ended = job.get("JobState") in _ENDED
            if has_ended or time.monotonic() > deadline:
                pytest.fail(f"{job}\n{printed}\n{self.logs()}")
            time.sleep(1)

    def reach_limit(self, number: str, signal_seconds: int) -> None:
        """Brings the time limit of a running job so near that Slurm soon signals it.

        Slurm looks for such jobs every half minute. However slow the machine, the job
        has then started, and at least `signal_seconds` less half a minute to end.
        """
        hours, minutes, _ = map(int, self.job(number)["RunTime"].split(":"))
        limit = 60 * hours + minutes + signal_seconds // 60 + 1
        self._update(number, f"TimeLimit={limit}")

    def restart(self, number: str, output: Path) -> None:
        """Starts a job that has reached its limit again, with an hour of time.

        Slurm would wait for two minutes.
        """
        self.wait_for(
            number,
            output,
            lambda job, _: (
                job["Restarts"] == "1" and job["JobState"] in ("PENDING", "RUNNING")
            ),
        )
        # A node compares whole seconds: a job that is started in the second in which
        # the node has ended it is refused, and fails.
        time.sleep(2)
        self._update(number, "TimeLimit=60")
        if self.job(number)["JobState"] == "PENDING":
            self._update(number, "StartTime=now")

    def _update(self, number: str, setting: str) -> None:
        done = self.run("scontrol", "update", f"JobId={number}", setting)
        assert done.returncode == 0, done.stderr

    def cancel(self, *options: str) -> None:
        """Cancels jobs, and waits until nothing of them is left."""
        self.run("scancel", *options)
        deadline = time.monotonic() + _START_SECONDS
        listed = ("squeue", "--noheader", "--states=RUNNING,COMPLETING")
        while self.run(*listed).stdout and time.monotonic() < deadline:
            time.sleep(0.2)

    def stop(self) -> None:
        """Ends all jobs and the daemons."""
        user = Path("/proc/self").owner()
        self.cancel("--state=PENDING", "--user", user)
        self.cancel("--user", user)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Returns a running Slurm."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # Its sockets need short paths.
    one = Slurm(folder)
    try:
        one.start()
        yield one
    finally:
        one.stop()
        shutil.rmtree(folder, ignore_errors=True)
