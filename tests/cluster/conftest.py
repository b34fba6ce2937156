"""Debian's Open MPI and Slurm on this machine.

They are installed (apt-get install openmpi-bin slurm-wlm), or unpacked into the folder
CLUSTER_PROGRAMS by `dpkg -x`, which needs no root.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import probe
from tests.jobs.conftest import MPIRUN, REPOSITORY

_ROOT = Path(os.environ.get("CLUSTER_PROGRAMS", "/"))
_LIBRARIES = _ROOT / "usr/lib/x86_64-linux-gnu"
_START_SECONDS = 30
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
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
NodeName=here NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} Sockets=1 \
CoresPerSocket={cores} ThreadsPerCore={threads}
NodeName=n[1-256] NodeAddr=127.0.0.2 Sockets=2 CoresPerSocket=24 State=CLOUD
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
SuspendExcNodes=here
PartitionName=here Nodes=here MaxTime=INFINITE Default=YES
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
    """A Slurm of one node, `here`, and 256 that don't answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        client = _program("usr/bin", "sbatch", "slurm-wlm")
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = _environment(client.parent)
        self.environment["SLURM_CONF"] = str(folder / "slurm.conf")

    def start(self) -> None:
        """Starts the daemons, and waits for the node."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        node = probe.probe()
        text = _CONFIG.format(
            host=socket.gethostname(),
            user=Path("/proc/self").owner(),
            folder=self.folder,
            plugins=_LIBRARIES / "slurm-wlm",
            controller_port=_free_port(),
            node_port=_free_port(),
            cores=node.num_installed_cores,
            threads=node.threads_per_core,
        )
        (self.folder / "slurm.conf").write_text(text)
        controller = _program("usr/sbin", "slurmctld-wlm", "slurmctld")
        node_daemon = _program("usr/sbin", "slurmd-wlm", "slurmd")
        step_daemon = _program("usr/sbin", "slurmstepd-wlm", "slurmd")
        self._run_daemon(str(controller), "-D", "-i")
        self._run_daemon(str(node_daemon), "-D", "-N", "here", "-d", str(step_daemon))
        deadline = time.monotonic() + _START_SECONDS
        while "idle" not in self.run("sinfo", "-h", "-p", "here", "-o", "%T").stdout:
            if time.monotonic() > deadline:
                paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
                logs = [path.read_text() for path in paths]
                pytest.fail("Slurm has not started:\n" + "\n".join(logs))
            time.sleep(0.2)

    def _run_daemon(self, *words: str) -> None:
        with (self.folder / f"{Path(words[0]).name}.out").open("wb") as output:
            daemon = subprocess.Popen(
                words,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(daemon)

    def run(self, *words: str, **given) -> subprocess.CompletedProcess[str]:
        """Runs a program of Slurm."""
        settings = {"env": self.environment, "timeout": 200, **given}
        return subprocess.run(words, capture_output=True, text=True, **settings)

    def stop(self) -> None:
        """Ends all jobs and the daemons."""
        self.run("scancel", "--state=PENDING", "--user", Path("/proc/self").owner())
        self.run("scancel", "--user", Path("/proc/self").owner())
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()


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
