"""What a process was started from: its command, the commit of its code, its packages.

A run notes it at each start, for people; nothing else reads it.
"""

import contextlib
import importlib.metadata
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 20.0  # On a slow file system, Git takes a second to compare all files.


def describe(root: Path = _ROOT) -> dict[str, Any]:
    """Returns the command line, the Git commit, and the version of each package.

    The commit ends in "-dirty" if a file differs from it; it is None without a clone.
    """
    command = shlex.join(sys.argv)
    return {"command": command, "git": _commit(root), "packages": _packages()}


def _packages() -> dict[str, str]:
    versions: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):  # Damaged metadata of a package.
        for distribution in importlib.metadata.distributions():
            if "Name" in distribution.metadata:
                # Of several, Python imports that of the first folder.
                versions.setdefault(distribution.metadata["Name"], distribution.version)
    return dict(sorted(versions.items()))


def _commit(root: Path) -> str | None:
    if not (root / ".git").exists():  # A wheel, even if a clone is above its folder.
        return None
    # The folders are named so that neither GIT_DIR nor an owner other than the user,
    # as in a container, leads elsewhere.
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}"]
    # Without a file of locks: several jobs may start from one clone.
    command += ["--no-optional-locks", "describe", "--always", "--exclude=*"]
    command += ["--abbrev=40", "--dirty"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
