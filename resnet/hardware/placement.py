"""A rank's position in its job, and its cores, threads and environment.

These are set before TensorFlow is imported, because it reads them only once. Therefore
this file uses the standard library only.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resnet.base.errors import UserError
from resnet.hardware.launchers import LAUNCHERS, UNKNOWN_LAUNCHERS

# TensorFlow's own allocator of tensors, which keeps their memory for later ones. malloc
# returns large blocks to the kernel, and each step pays for their page faults again, in
# a virtual machine a quarter of its time. The allocator's limit of 64 GB is lifted.
TENSOR_ALLOCATOR = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(2**24),
}


@dataclass(frozen=True)
class ProcessInfo:
    """The position of a process among the ranks of its job, and on its node."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local_ranks: int = 1


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
    return ProcessInfo()


def choose_threads(
    cores: Sequence[tuple[int, ...]], num_intra_threads: int, num_inter_threads: int
) -> Threads:
    """Returns the threads of a rank that has these physical cores.

    0 threads per op are one per core; 0 concurrent ops are one.
    """
    has_free_core = 0 < num_intra_threads < len(cores)
    return Threads(
        cpus=tuple(cpu for core in cores for cpu in core),
        num_intra_threads=num_intra_threads or len(cores),
        num_inter_threads=num_inter_threads or 1,
        communication_cpu=cores[-1][0] if has_free_core else None,
    )


def environment(
    threads: Threads,
    kmp_blocktime: int,
    amx_is_hidden: bool,
    environ: Mapping[str, str],
    num_local_ranks: int = 1,
) -> dict[str, str]:
    """Returns the environment variables to set before TensorFlow is imported.

    Variables that the user has set in `environ` keep their values, except the numbers
    of TensorFlow's threads, which have flags. OpenMP threads spin for `kmp_blocktime`
    ms before they sleep.
    """
    defaults = {
        "OMP_NUM_THREADS": str(threads.num_intra_threads),
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": str(kmp_blocktime),
        "KMP_SETTINGS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",  # Errors only; else each rank prints notes.
        "CUDA_VISIBLE_DEVICES": "-1",  # Without it, TensorFlow warns of missing GPUs.
        **TENSOR_ALLOCATOR,
    }
    if amx_is_hidden:
        defaults["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
    if threads.communication_cpu is not None:
        # Horovod reads a processor for each rank of the node, and takes its own.
        cpus = [str(threads.communication_cpu)] * num_local_ranks
        defaults["HOROVOD_THREAD_AFFINITY"] = ",".join(cpus)
    return {
        **{name: environ.get(name, value) for name, value in defaults.items()},
        "TF_NUM_INTRAOP_THREADS": str(threads.num_intra_threads),
        "TF_NUM_INTEROP_THREADS": str(threads.num_inter_threads),
    }


def apply(threads: Threads, variables: Mapping[str, str]) -> None:
    """Binds this process to its processors and sets its environment."""
    os.sched_setaffinity(0, threads.cpus)
    os.environ.update(variables)


def openmp_is_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """Returns whether TensorFlow is Intel's with OpenMP, which KMP_* and OMP_* tune."""
    return maps.exists() and "libiomp5" in maps.read_text()
