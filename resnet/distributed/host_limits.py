"""Refuses hosts that don't allow a job what its ranks need."""

import os
import platform
import resource

from resnet.base.errors import UserError
from resnet.hardware.placement import ProcessInfo

_SHARED_MEMORY_BYTES = 5 << 20  # What a rank of MPICH 5 takes, rounded down.
_OTHER_OPEN_FILES = 32  # Rank 0's watchdog has 10 besides its connections.


def check_shared_memory(process: ProcessInfo) -> None:
    """Refuses too small a /dev/shm, where the MPI library would die of SIGBUS.

    The size of /dev/shm is checked, rather than its free space, so that all ranks of a
    node come to the same result.

    Raises:
        UserError: If /dev/shm is too small for the ranks of this node.
    """
    try:
        memory = os.statvfs("/dev/shm")
    except OSError:
        return
    size = memory.f_blocks * memory.f_frsize
    needed = process.num_local_ranks * _SHARED_MEMORY_BYTES
    if size < needed:
        raise UserError(
            f"/dev/shm must have at least {needed / 2**20:.0f} MiB for the MPI messages"
            f" of {process.num_local_ranks} rank(s) per node; {platform.node()} has"
            f" {size / 2**20:.0f} MiB. Enlarge it, as by --shm-size of docker run, or"
            " start fewer ranks per node."
        )


def check_open_files(num_ranks: int) -> None:
    """Refuses a limit of open files that rank 0's watchdog would exceed.

    It has a connection to each other rank, up to the hard limit of its host.

    Raises:
        UserError: If the limit is too low.
    """
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_ranks + _OTHER_OPEN_FILES
    if resource.RLIM_INFINITY != allowed < needed:
        raise UserError(
            f"a process on the host of rank 0 must be allowed {needed} open files,"
            f" since its watchdog has a connection to each of the {num_ranks} ranks;"
            f" {platform.node()} allows {allowed} (ulimit -Hn). Raise that limit, or"
            " start fewer ranks."
        )
