"""What the launchers of ranks are to a rank and a supervisor: one row each.

How a launcher or scheduler is told to start ranks is in `launch/dialects.py`, which
isn't installed with the package. This file is read before TensorFlow is.
"""

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A rank, the number of ranks, the rank on the node, and the number of ranks there.
Place = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Names of options, by which a supervisor leaves out hosts; it uses the first."""

    ranks: tuple[str, ...]
    ranks_per_host: tuple[str, ...]
    hosts: tuple[str, ...]  # Separated by commas, as `host` or `host:ranks`.
    host_files: tuple[str, ...]
    reaching: tuple[str, ...]  # About how hosts are reached, which a probe needs too.
    with_two_values: tuple[str, ...]  # Or one, as `NAME=VALUE`.


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """How a launcher is known."""

    # Returns the place of a rank by the environment that the launcher gives it; None in
    # a process that it hasn't started.
    place: Callable[[Mapping[str, str]], Place | None]
    # What the names of its processes begin with, from the command to the parent of a
    # rank, which copy the output of ranks.
    processes: tuple[str, ...] = ()
    host_variable: str = ""  # Has the name by which it knows a rank's host.
    host_options: HostOptions | None = None  # None if its commands are never changed.
    # The binary interfaces of the MPI libraries of its ranks, the likeliest first.
    interfaces: tuple[str, ...] = ("mpich", "openmpi")


def _in_variables(*names: str) -> Callable[[Mapping[str, str]], Place | None]:
    """Returns a function that reads the four numbers of a place from variables."""

    def place(environ: Mapping[str, str]) -> Place | None:
        if not all(name in environ for name in names):
            return None
        return tuple(int(environ[name]) for name in names)

    return place


def _in_slurm_step(environ: Mapping[str, str]) -> Place | None:
    """Returns the place of a task; a batch script is none, but has SLURM_PROCID too."""
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return None
    counts: list[int] = []  # Of tasks on each node, from a form such as `2(x3),1`.
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = int(environ.get("SLURM_NODEID", "0"))
    return (
        int(environ["SLURM_PROCID"]),
        int(environ["SLURM_STEP_NUM_TASKS"]),
        int(environ.get("SLURM_LOCALID", "0")),
        counts[node] if node < len(counts) else 1,
    )


# The first one whose variables a process has is its launcher. Slurm is last, since
# ranks that Hydra starts under Slurm inherit the variables of its helper processes.
LAUNCHERS = {
    "Hydra": Launcher(  # Of MPICH and of Intel MPI.
        place=_in_variables(
            "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"
        ),
        processes=("mpirun", "mpiexec", "hydra"),
        host_variable="PMI_HOSTNAME",
        interfaces=("mpich",),
        host_options=HostOptions(
            ranks=("-np", "-n"),
            ranks_per_host=("-ppn", "-perhost"),
            hosts=("-hosts", "-host", "-hostlist", "-machines", "-machinelist"),
            host_files=("-f", "-hostfile", "-machinefile"),
            reaching=("-launcher", "-launcher-exec", "-rmk", "-iface", "-localhost"),
            with_two_values=("-genv", "-env"),
        ),
    ),
    "Open MPI": Launcher(
        place=_in_variables(
            *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE")),
            *(f"OMPI_COMM_WORLD_LOCAL_{name}" for name in ("RANK", "SIZE")),
        ),
        processes=("mpirun", "mpiexec", "orterun", "orted", "prte"),
        interfaces=("openmpi",),
    ),
    "Slurm": Launcher(place=_in_slurm_step, host_variable="SLURMD_NODENAME"),
}


def of(environ: Mapping[str, str]) -> tuple[str, Launcher]:
    """Returns the name and the row of the launcher of a rank of several."""
    for name, launcher in LAUNCHERS.items():
        if launcher.place(environ):
            return name, launcher
    raise LookupError("no launcher has started this process")


# Variables of others. If they were ignored, each rank would train alone.
UNKNOWN_LAUNCHERS = (
    *("PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "ALPS_APP_PE"),
)

# Likewise, with the most that they say of a process that is alone.
MOST_OF_A_LONE_PROCESS = {
    **dict.fromkeys(("HOROVOD_SIZE", "WORLD_SIZE", "FLUX_JOB_SIZE"), 1),
    **dict.fromkeys(("JSM_NAMESPACE_SIZE", "TF_CONFIG"), 1),
    **dict.fromkeys(("HOROVOD_RANK", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK"), 0),
}


def host_name(environ: Mapping[str, str]) -> str:
    """Returns the name by which the launcher knows this host, or else its own."""
    names = [environ.get(row.host_variable) for row in LAUNCHERS.values()]
    return next(filter(None, names), platform.node())
