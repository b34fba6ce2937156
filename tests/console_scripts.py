"""The console scripts that setup.py declares, and the programs that they run."""

import functools
import re
from importlib import import_module
from pathlib import Path

_SETUP = Path(__file__).resolve().parents[1] / "setup.py"


def modules() -> dict[str, str]:
    """Returns the module of the program of each console script."""
    text = _SETUP.read_text(encoding="utf-8")
    found = {}
    for script, module, name in re.findall(r'"([\w-]+) = ([\w.]+):(\w+)"', text):
        function = getattr(import_module(module), name)
        is_command = isinstance(function, functools.partial)
        found[script] = function.args[0] if is_command else module
    return found
