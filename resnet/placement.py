"""A rank's place on its node: its cores, its threads and its environment.

Settled before TensorFlow is imported, which reads them once; so without it here.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError

# Where each launcher tells (rank, ranks, rank on the node, ranks on the node). Hydra is
# the launcher of MPICH and of Intel MPI.
_LAUNCHERS = {
    "Hydra": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}


# Of launchers that are not understood: without a word, each rank would be a run alone.
_OTHER_LAUNCHERS = (
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "ALPS_APP_PE",
)


@dataclass(frozen=True)
class Place:
    """Where a process stands among the ranks of its job."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local_ranks: int = 1


@dataclass(frozen=True)
class Threads:
    """What a rank computes with.

    Attributes:
        cpus: The logical processors that it is bound to.
        num_intra_threads: Threads that share the work of one op.
        num_inter_threads: Ops that run at the same time.
    """

    cpus: tuple[int, ...]
    num_intra_threads: int
    num_inter_threads: int


def find_place(environ: Mapping[str, str]) -> Place:
    """Returns the place that the launcher's variables tell; alone without a launcher.

    Slurm's are looked at last, since ranks that Hydra started under Slurm inherit those
    of its helper processes, and only inside a job step: a batch script itself is no
    rank, although it sees SLURM_PROCID and SLURM_NTASKS.

    Raises:
        UserError: If there is a launcher whose variables don't tell it.
    """
    for names in _LAUNCHERS.values():
        if all(name in environ for name in names):
            return Place(*(int(environ[name]) for name in names))
    if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:
        return Place(
            rank=int(environ["SLURM_PROCID"]),
            num_ranks=int(environ["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(environ.get("SLURM_LOCALID", "0")),
            num_local_ranks=_slurm_tasks_on_node(
                environ.get("SLURM_STEP_TASKS_PER_NODE", "1"),
                int(environ.get("SLURM_NODEID", "0")),
            ),
        )
    if unknown := [name for name in _OTHER_LAUNCHERS if name in environ]:
        raise UserError(
            f"{unknown[0]} is set, so a launcher started this process, but one that"
            " does not tell the rank's place on its node. Start with the mpirun of"
            " MPICH, Intel MPI or Open MPI, or with Slurm's srun."
        )
    return Place()


def _slurm_tasks_on_node(tasks_per_node: str, node: int) -> int:
    """Returns the ranks on one node, from Slurm's short form such as `2(x3),1`."""
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    return counts[node] if node < len(counts) else 1


def group_by_core(
    cpus: Sequence[int], topology: Path = Path("/sys/devices/system/cpu")
) -> list[tuple[int, ...]]:
    """Returns the logical processors of each physical core, socket after socket.

    Args:
        cpus: Logical processors that the process may use.
        topology: Folder in which Linux describes them; a processor that is not
            described there counts as a core of its own.
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        folder = topology / f"cpu{cpu}" / "topology"
        try:
            socket = int((folder / "physical_package_id").read_text())
            core = int((folder / "core_id").read_text())
        except (OSError, ValueError):
            socket, core = -1, cpu
        cores.setdefault((socket, core), []).append(cpu)
    return [tuple(cores[key]) for key in sorted(cores)]


def cores_of_rank(
    place: Place, cores_seen: Sequence[Sequence[tuple[int, ...]]]
) -> list[tuple[int, ...]]:
    """Returns the physical cores that a rank is to use.

    Ranks of a node that see the same cores divide them, in runs of neighbours: all of
    the node, or what the launcher has bound them to. With more ranks than cores, ranks
    share a core.

    Args:
        place: The rank's place.
        cores_seen: What each rank of the node may use, as `group_by_core` gives it, in
            the order of their local ranks.
    """
    mine = list(cores_seen[place.local_rank])
    sharers = [rank for rank, seen in enumerate(cores_seen) if list(seen) == mine]
    number = sharers.index(place.local_rank)
    if len(sharers) >= len(mine):
        return [mine[number % len(mine)]]
    first = number * len(mine) // len(sharers)
    end = (number + 1) * len(mine) // len(sharers)
    return mine[first:end]


def choose_threads(
    cores: Sequence[tuple[int, ...]], num_intra_threads: int, num_inter_threads: int
) -> Threads:
    """Returns a rank's threads; 0 stands for one a core, and for one op at a time."""
    return Threads(
        cpus=tuple(cpu for core in cores for cpu in core),
        num_intra_threads=num_intra_threads or len(cores),
        num_inter_threads=num_inter_threads or 1,
    )


def environment(
    threads: Threads,
    kmp_blocktime: int,
    amx_is_hidden: bool,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Returns the variables to set before TensorFlow is imported.

    What the user has set in `environ` stays, but for the number of TensorFlow's
    threads, which have flags.

    Args:
        threads: Of this rank.
        kmp_blocktime: Milliseconds that an OpenMP thread spins before it sleeps.
        amx_is_hidden: Whether `cpu_features.amx_is_hidden` found it so.
        environ: The process's environment.
    """
    defaults = {
        "OMP_NUM_THREADS": str(threads.num_intra_threads),
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": str(kmp_blocktime),
        "KMP_SETTINGS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",  # Errors only, or each rank prints notes.
        "CUDA_VISIBLE_DEVICES": "-1",  # Or TensorFlow looks for GPUs, and complains.
    }
    if amx_is_hidden:
        defaults["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
    settings = {key: environ.get(key, value) for key, value in defaults.items()}
    settings["TF_NUM_INTRAOP_THREADS"] = str(threads.num_intra_threads)
    settings["TF_NUM_INTEROP_THREADS"] = str(threads.num_inter_threads)
    return settings


def settle(threads: Threads, variables: Mapping[str, str]) -> None:
    """Binds this process to its processors and sets its environment."""
    os.sched_setaffinity(0, threads.cpus)
    os.environ.update(variables)


def openmp_is_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """Returns whether TensorFlow computes with OpenMP, which KMP_* and OMP_* speak to.

    Stock TensorFlow runs oneDNN on its own threads; Intel's builds bring libiomp5.
    """
    try:
        return "libiomp5" in maps.read_text()
    except OSError:
        return False
