"""A signal that a process gets when the process that started it has ended.

A stopped process (SIGSTOP) can't notice the end of its parent. The kernel sends the
signal nevertheless.
"""

import ctypes
import os

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # Loaded before a fork, after which little is safe.


def send_signal(number: int, parent: int) -> None:
    """Asks the kernel to send this process a signal when its parent ends.

    Args:
        number: The number of the signal. The request persists across exec.
        parent: The process id of the parent, which may have ended already.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_process_name(name: str) -> None:
    """Sets the name of this process that ps and top show, of at most 15 characters."""
    _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
