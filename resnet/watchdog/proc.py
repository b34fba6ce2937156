"""Facts about processes that the kernel reports in /proc."""


def process_is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped by a signal."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def parent_of(pid: int) -> int | None:
    """Returns the process id of a process's parent, or None if there is no process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def shared_memory() -> set[str]:
    """Returns the files of /dev/shm that this process has mapped."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file}
    except OSError:
        return set()
    return {
        path
        for path in paths
        if path.startswith("/dev/shm/") and not path.endswith(" (deleted)")
    }


def oom_kills() -> int:
    """Returns how many processes the kernel has killed because memory ran out."""
    try:
        with open("/proc/vmstat") as file:
            counts = dict(line.split() for line in file)
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))
