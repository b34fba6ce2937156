"""What the kernel tells of this boot of the machine, and of this process."""

import os
import platform
import time
from pathlib import Path

from resnet.base import limits


def boot_id(root: Path = Path("/")) -> str:
    """Returns what two hosts share only if they are one machine.

    It is Linux's random number of this boot or, if that can't be read, the host's name.
    """
    return limits.read(root / "proc/sys/kernel/random/boot_id") or platform.node()


def process_age_seconds() -> float:
    """Returns the seconds since the start of this process.

    Source: proc_pid_stat(5), field 22, starttime: clock ticks since the boot.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
