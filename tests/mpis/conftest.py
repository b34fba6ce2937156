"""Five MPIs: the environment's MPICH, and four that are fetched into .venv.mpis.

Two are wheels, two are Debian's packages, which need no root when they are unpacked.
All have pinned versions; pip is told the hashes, and apt has those that Debian signs.
The tests of srun need Debian's Slurm as well (tests/cluster/conftest.py).
"""

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launch.dialects import DIALECTS, JobShape
from tests import tiny_set
from tests.cluster.conftest import Slurm, slurm  # noqa: F401 - A fixture.
from tests.made_once import made_once
from tests.processes import completed

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv.mpis"
_DEBIAN = FOLDER / "debian"
_LIBRARIES = _DEBIAN / f"usr/lib/{platform.machine()}-linux-gnu"
_PACKAGES = (
    *("mpich=4.0.2-3+b1", "libmpich12=4.0.2-3+b1", "libucx0=1.13.1-1"),
    *("openmpi-bin=4.1.4-3+b1", "libopenmpi3=4.1.4-3+b1", "openmpi-common=4.1.4-3"),
    *("libpmix2=4.2.2-1+deb12u1", "libhwloc15=2.9.0-1", "libmunge2=0.5.15-2+deb12u1"),
    *("libslurm38=22.05.8-4+deb12u3", "libevent-core-2.1-7=2.1.12-stable-8+deb12u1"),
    "libevent-pthreads-2.1-7=2.1.12-stable-8+deb12u1",
)
# More ranks than cores, also as root. Of version 5 the latter ones.
_OPEN_MPI = {
    **{f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")},
    **{f"PRTE_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")},
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mca_base_component_show_load_errors": "0",  # Of networks' libraries.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# What an Open MPI needs that isn't in the folders for which it was built.
_OPAL = {
    "PREFIX": _LIBRARIES / "openmpi",
    "BINDIR": _DEBIAN / "usr/bin",
    "LIBDIR": _LIBRARIES,
    "PKGLIBDIR": _LIBRARIES / "openmpi/lib/openmpi3",
    "DATADIR": _DEBIAN / "usr/share",
    "PKGDATADIR": _DEBIAN / "usr/share/openmpi",
}
_DEBIANS = {"LD_LIBRARY_PATH": f"{_LIBRARIES}:{_LIBRARIES}/pmix2/lib"}


@dataclass(frozen=True)
class Mpi:
    """An MPI and how its jobs are started."""

    dialect: str
    programs: Path  # The folder of its mpirun.
    libraries: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which its mpirun is found first."""
        path = f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = {"PATH": path, "PYTHONPATH": str(ROOT), "HWLOC_XMLFILE": "/none"}
        return {**os.environ, **settings, **self.variables}

    def run_in_slurm(self, cluster: Slurm, *arguments: object) -> str:
        """Runs Python on two ranks that srun starts, with this MPI's library."""
        srun_mpi = "pmix" if self.dialect == "openmpi" else "pmi2"
        shape = JobShape(1, 2, 2, 2, srun_mpi=srun_mpi)
        # As a module sets it; the libraries of Slurm's own programs are others.
        path = self.variables.get("LD_LIBRARY_PATH", self.libraries)
        settings = {**self.variables, "LD_LIBRARY_PATH": path, "HWLOC_XMLFILE": "/none"}
        words = [f"{name}={value}" for name, value in settings.items()]
        words = [*DIALECTS["slurm"].command(shape, ["--overcommit"]), "env", *words]
        done = cluster.run(*words, sys.executable, *map(str, arguments), cwd=ROOT)
        if "can not load PMIx library" in done.stderr:
            pytest.skip("Slurm loads PMIx from /usr only: apt-get install libpmix-dev")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def words(self, num_ranks: int, program: str, *arguments: object) -> list[str]:
        """Returns the planner's command for ranks on this machine."""
        shape = JobShape(1, num_ranks, num_ranks, os.cpu_count() or 1)
        launcher = DIALECTS[self.dialect].command(shape)
        return [*launcher, sys.executable, str(ROOT / program), *map(str, arguments)]

    def run(self, num_ranks: int, program: str, *arguments: object) -> str:
        """Runs a program to its end, and returns what it has printed."""
        words = self.words(num_ranks, program, *arguments)
        done = completed(words, env=self.environment, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


MPICH = Mpi("mpich", Path(sys.prefix, "bin"), Path(sys.prefix, "lib"))
MPIS = {
    "MPICH 5": MPICH,
    "MPICH 4": Mpi("mpich", FOLDER / "mpich", _LIBRARIES, _DEBIANS),
    "Intel MPI": Mpi(
        "intelmpi",
        FOLDER / "impi-rt/bin",
        FOLDER / "impi-rt/lib",
        {"I_MPI_FABRICS": "shm"},  # Its wheel lacks the library of the others.
    ),
    "Open MPI 4.1": Mpi(
        "openmpi",
        FOLDER / "openmpi-bin",
        _LIBRARIES,
        _DEBIANS | _OPEN_MPI | {f"OPAL_{name}": str(_OPAL[name]) for name in _OPAL},
    ),
    "Open MPI 5": Mpi(
        "openmpi", FOLDER / "openmpi/bin", FOLDER / "openmpi/lib", _OPEN_MPI
    ),
}


def _fetch() -> None:
    wheels = Path(__file__).with_name("requirements.txt").read_text().splitlines()
    for requirement in wheels:
        prefix = FOLDER / requirement.partition("==")[0]
        (file := FOLDER / "requirement.txt").write_text(requirement)
        words = ("install", "--quiet", "--no-deps", "--ignore-installed", "--prefix")
        _run(
            sys.executable, "-m", "pip", *words, prefix, "--require-hashes", "-r", file
        )
    _run("apt-get", "download", *_PACKAGES)
    for package in FOLDER.glob("*.deb"):
        _run("dpkg", "-x", package, _DEBIAN)
    for name, programs in {
        "mpich": {"mpirun": "mpiexec.hydra", "hydra_pmi_proxy": "hydra_pmi_proxy"},
        "openmpi-bin": {"mpirun": "mpirun.openmpi"},
    }.items():
        (FOLDER / name).mkdir()
        for link, program in programs.items():
            (FOLDER / name / link).symlink_to(_DEBIAN / "usr/bin" / program)
    (FOLDER / "fetched").touch()


def _run(*words: object) -> None:
    done = completed(list(map(str, words)), cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session", params=MPIS)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Each MPI."""
    if not (FOLDER / "fetched").exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        _fetch()
    return MPIS[request.param]


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits."""
    return made_once(tmp_path_factory, "digits", tiny_set.make_digits) / "records"
