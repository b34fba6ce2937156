"""Whether this Python has the project's packages; else, how to use the one that has.

Standard library only, and no syntax newer than 3.8: a system's Python may be old.
"""

import importlib.util
import os
import shlex
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def require(package: str) -> None:
    """Ends the program with exit code 2 and a sentence if a package is missing.

    To run another Python instead would be wrong under mpirun, which has to be that of
    the environment as well.
    """
    sentence = importlib.util.find_spec(package) is None and describe_missing(package)
    if sentence:
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)


def describe_missing(package: str) -> str:
    """Returns the sentence on a missing package; empty in the clone's environment."""
    venv = _ROOT / ".venv"
    is_clone = (_ROOT / "install" / "install.sh").is_file()
    if not is_clone or Path(sys.prefix).resolve() == venv.resolve():
        return ""
    activate = f"source {shlex.quote(str(venv / 'bin' / 'activate'))}"
    moved_from = _made_as(venv)
    if moved_from or not venv.exists():
        activate = f"make venv in {_ROOT}, then {activate}"
    if moved_from:
        return (
            f"the environment was made as {moved_from}, and has been moved or copied;"
            f" this Python, {sys.executable}, is another one, without the package"
            f" {package}. Run {activate}"
        )
    return (
        f"this Python, {sys.executable}, has no package {package}, which the"
        f" environment of the project has. Run {activate}"
    )


def _made_as(venv: Path) -> str:
    """Returns the folder as which an environment was made, if it is another now.

    Its scripts, such as `activate`, name that folder. `install.sh` writes the file.
    """
    try:
        lines = (venv / "choices").read_text().splitlines()
    except (OSError, ValueError):
        return ""
    folder = next((line[7:] for line in lines if line.startswith("FOLDER=")), "")
    is_here = not folder or os.path.realpath(folder) == os.path.realpath(str(venv))
    return "" if is_here else folder
