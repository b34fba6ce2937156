"""The command lines that docs/planning.md shows."""

import re
import shlex
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs/planning.md"
_STARTING = {"--check", "--run"}


def commands(are_starting: bool = False) -> list[list[str]]:
    """Returns the words of the commands of the planner that print, or start ranks."""
    lines = re.findall(r"^    (python launch/plan\.py .*)$", _PAGE.read_text(), re.M)
    found = [shlex.split(line) for line in lines]
    return [words for words in found if bool(_STARTING & set(words)) == are_starting]
