"""The age of this process."""

import os
import time
from pathlib import Path


def seconds() -> float:
    """Returns the seconds since the start of this process.

    Source: proc_pid_stat(5), field 22, starttime: clock ticks since the boot.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
