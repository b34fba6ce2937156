"""Which MPI library a rank loads: that of the launcher which has started it.

mpi4py and Horovod are installed for two binary interfaces, MPICH's and Open MPI's. A
process must not mix them, so one library is chosen before mpi4py is imported, and
Horovod's follows from what mpi4py has loaded.
"""

import ctypes
import importlib.util
import os
import platform
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from resnet.base.errors import NodeError
from resnet.hardware import launchers
from resnet.watchdog import proc

# The names of a library, by its interface. The first one of MPICH's is also that of
# Intel MPI, Cray MPICH and MVAPICH; Debian's MPICH has the second one.
NAMES = {"mpich": ("libmpi.so.12", "libmpich.so.12"), "openmpi": ("libmpi.so.40",)}
_VARIABLE = "MPI4PY_LIBMPI"  # By which mpi4py, and here a user, names a library.
_FOLDERS = ("lib", "lib64", f"lib/{platform.machine()}-linux-gnu", "lib/release")


def choose(
    environ: Mapping[str, str],
    folders: Iterable[str],
    is_file: Callable[[str], bool] = os.path.isfile,
) -> str:
    """Returns the path of the MPI library for a rank with the variables of a launcher.

    Args:
        environ: The environment of the rank.
        folders: The folders in which libraries are searched, in this order.
        is_file: Returns whether a path is that of a file.

    Raises:
        NodeError: If the library that belongs to the launcher isn't in the folders.
    """
    if path := environ.get(_VARIABLE):
        return path
    title, launcher = launchers.of(environ)
    # Slurm tells a rank neither, but Open MPI connects by PMIx alone.
    order = launcher.interfaces[:: -1 if "PMIX_RANK" in environ else 1]
    folders = list(dict.fromkeys(folders))
    for interface in order:
        for folder in folders:
            for name in NAMES[interface]:
                if is_file(path := f"{folder}/{name}"):
                    return path
    names = [name for interface in order for name in NAMES[interface]]
    raise NodeError(
        f"{title} has started this process, which therefore needs the MPI library"
        f" {' or '.join(names)}; {platform.node()} has it in none of"
        f" {', '.join(folders)}. Load the module of that MPI, or name its library by"
        f" {_VARIABLE}=/path/to/{names[0]}."
    )


def prepare(environ: MutableMapping[str, str]) -> None:
    """Has mpi4py, when it is imported, load the library that belongs to the launcher.

    Raises:
        NodeError: If there is no such library, or if it can't be loaded.
    """
    if _is_of_site():
        return
    environ[_VARIABLE] = path = choose(environ, _folders(environ))
    environ.pop("MPI4PY_MPIABI", None)  # It could name the other interface.
    if Path(path).name.startswith("libmpi.so"):
        return
    # What is compiled for libmpi.so.12 wouldn't take a library that has another name
    # within, so an empty one has it, and the functions are global.
    try:
        for file in (path, str(_horovod_folder() / "libmpi.so.12")):
            ctypes.CDLL(file, os.RTLD_GLOBAL | os.RTLD_LAZY)
    except OSError as error:
        raise NodeError(f"the MPI library {path} can't be loaded: {error}.") from error


def horovod_library(mpi: Any) -> str:
    """Returns the file name of Horovod's library for the loaded `mpi4py.MPI`."""
    interface = "openmpi" if mpi.get_vendor()[0] == "Open MPI" else "mpich"
    return f"mpi_lib_{'site' if _is_of_site() else interface}.so"


def _is_of_site() -> bool:
    """Returns whether set-up has built mpi4py and Horovod for one MPI, by MPICXX=."""
    return (_horovod_folder() / "mpi_lib_site.so").exists()


def _horovod_folder() -> Path:
    spec = importlib.util.find_spec("horovod")
    return Path(spec.origin if spec and spec.origin else "").parent / "tensorflow"


def _folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the folders of libraries: the launcher's, those of modules, the rest."""
    _, launcher = launchers.of(environ)
    pid = proc.parent_of(os.getpid())
    while pid and pid > 1:
        try:
            program = os.readlink(f"/proc/{pid}/exe")
        except OSError:  # Of another user.
            program = ""
        if Path(program).name.startswith(launcher.processes or ("/",)):
            yield from _beside(program)
        pid = proc.parent_of(pid)
    yield from filter(None, environ.get("LD_LIBRARY_PATH", "").split(":"))
    if mpirun := shutil.which("mpirun", path=environ.get("PATH")):
        yield from _beside(mpirun)
    yield f"{sysconfig.get_path('data')}/lib"  # The MPICH of requirements.txt.
    yield from _beside("/usr/bin/mpirun")


def _beside(program: str) -> Iterator[str]:
    prefix = Path(program).resolve().parents[1]
    return (f"{prefix}/{folder}" for folder in _FOLDERS)
