"""A rank's position in its job, and its cores, threads and environment.

These are set before TensorFlow is imported, because it reads them only once. Therefore
this file uses the standard library only.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resnet.base import environment as table
from resnet.base.errors import UserError
from resnet.hardware.launchers import (
    LAUNCHERS,
    MOST_OF_A_LONE_PROCESS,
    UNKNOWN_LAUNCHERS,
)


@dataclass(frozen=True)
class ProcessInfo:
    """The position of a process among the ranks of its job, and on its node."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local_ranks: int = 1

    @property
    def has_all_ranks_on_node(self) -> bool:
        """Whether the job is on this node alone."""
        return self.num_local_ranks == self.num_ranks


@dataclass(frozen=True)
class Threads:
    """The processors and threads of a rank."""

    cpus: tuple[int, ...]  # The logical processors that the rank is bound to.
    num_intra_threads: int  # That share the work of one op.
    num_inter_threads: int  # Ops that run concurrently.
    # The logical processor of Horovod's thread, on the last of the cores that the
    # intra-op threads leave free; None if they leave none.
    communication_cpu: int | None = None


def find_process_info(environ: Mapping[str, str]) -> ProcessInfo:
    """Returns the position in the launcher's variables, or that of a lone rank."""
    for launcher in LAUNCHERS.values():
        if place := launcher.place(environ):
            return ProcessInfo(*place)
    if unknown := [name for name in UNKNOWN_LAUNCHERS if name in environ]:
        raise UserError(
            f"{unknown[0]} is set by a launcher that does not pass the rank on the"
            " node. Use mpirun of MPICH, Intel MPI or Open MPI, or srun."
        )
    for name, most in MOST_OF_A_LONE_PROCESS.items():
        value = environ.get(name, "")
        if name == "TF_CONFIG":  # JSON with the host:port of each process.
            value = str(len(re.findall(r':\d+"', value)))
        if value.isdigit() and int(value) > most:
            raise UserError(
                f"{name} is of a launcher that this program doesn't know, with several"
                f" processes ({value}): each would train alone. Start the ranks by srun"
                f" or mpirun, as mpirun -np 2 python ..., or unset {name} for one."
            )
    return ProcessInfo()


def choose_threads(
    cores: Sequence[tuple[int, ...]],
    num_intra_threads: int,
    num_inter_threads: int,
    cpu_quota: float = 0.0,
) -> Threads:
    """Returns the threads of a rank that has these physical cores.

    0 threads per op are one per core, but no more than `cpu_quota`, the processors
    whose time the rank may use, 0 for no limit; 0 concurrent ops are one.
    """
    has_free_core = 0 < num_intra_threads < len(cores)
    allowed = min(len(cores), math.ceil(cpu_quota) or len(cores))
    return Threads(
        cpus=tuple(cpu for core in cores for cpu in core),
        num_intra_threads=num_intra_threads or allowed,
        num_inter_threads=num_inter_threads or 1,
        communication_cpu=cores[-1][0] if has_free_core else None,
    )


def environment(
    threads: Threads,
    kmp_blocktime: int,
    amx_is_hidden: bool,
    environ: Mapping[str, str],
    num_local_ranks: int = 1,
) -> dict[str, str | None]:
    """Returns what to change in the environment before TensorFlow is imported.

    It is that of `environment.changes` for a rank; None removes a variable. OpenMP
    threads spin for `kmp_blocktime` ms before they sleep.
    """
    numbers: dict[str, object] = {
        "num_intra_threads": threads.num_intra_threads,
        "num_inter_threads": threads.num_inter_threads,
        "kmp_blocktime": kmp_blocktime,
    }
    if amx_is_hidden:
        numbers["max_cpu_isa"] = "AVX512_CORE_BF16"
    if threads.communication_cpu is not None:
        # Horovod reads a processor for each rank of the node, and takes its own.
        cpus = [str(threads.communication_cpu)] * num_local_ranks
        numbers["horovod_cpus"] = ",".join(cpus)
    return table.changes(environ, numbers)


def apply(threads: Threads, changed: Mapping[str, str | None]) -> str:
    """Binds this process to its processors, and settles its environment.

    Returns a warning of what is ignored; empty if nothing is.
    """
    os.sched_setaffinity(0, threads.cpus)
    return table.settle(os.environ, changed)


def openmp_is_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """Returns whether TensorFlow is Intel's with OpenMP, which KMP_* and OMP_* tune."""
    return maps.exists() and "libiomp5" in maps.read_text(errors="replace")
