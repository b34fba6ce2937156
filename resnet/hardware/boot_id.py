"""What tells one machine from another, whatever it is called."""

import platform
from pathlib import Path


def read(root: Path = Path("/")) -> str:
    """Returns what two hosts share only if they are one machine.

    It is Linux's random number of this boot or, if that can't be read, the host's name.

    Args:
        root: The folder that stands for `/`.
    """
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
