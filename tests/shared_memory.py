"""Files in shared memory, which programs that are killed leave behind."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")


def all_names(prefix: str = "") -> set[str]:
    """Returns the names of the files that begin so."""
    return {name for name in os.listdir(FOLDER) if name.startswith(prefix)}


def used_by(pid: int, names: Iterable[str]) -> set[str]:
    """Returns those of some files that a process has open or mapped."""
    inodes = set(_inodes_of(pid))
    return {name for name in names if _inode(FOLDER / name) in inodes}


def unused(names: Iterable[str]) -> set[str]:
    """Returns those of some files that no process of this user has open or mapped."""
    left = {name for name in names if (FOLDER / name).exists()}
    for entry in Path("/proc").glob("[0-9]*"):
        if not left:
            break
        left -= used_by(int(entry.name), left)
    return left


def remove_unused(names: Iterable[str]) -> None:
    """Removes those of some files that no process has open or mapped."""
    for name in unused(names):
        with contextlib.suppress(OSError):  # It is another user's, or gone.
            (FOLDER / name).unlink()


def _inodes_of(pid: int) -> Iterator[int]:
    """Returns the files of a process; a file may have had another name when opened."""
    with contextlib.suppress(OSError):
        # A file is mapped before it is closed, so that one of the two looks finds it.
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(file.readlink()).startswith(f"{FOLDER}/"):
                    yield file.stat().st_ino
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if f" {FOLDER}/" in line:
                yield int(line.split()[4])


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
