"""`model_dir/failure.json`: how the last start ended, for whoever starts it again."""

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

FILE = "failure.json"
_STEP = re.compile(r"\bstep (\d+)")


def write(model_dir: Path, reason: str, is_locked: bool = False) -> None:
    """Writes it: the reason, the step that it names, and the time.

    A disk that doesn't take it changes nothing about the failure.

    Args:
        model_dir: Folder of the run.
        reason: One sentence.
        is_locked: Whether the start failed because another job is in the folder.
    """
    match = _STEP.search(reason)
    facts = {
        "step": int(match[1]) if match else None,
        "reason": reason,
        "locked": is_locked,
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    with contextlib.suppress(OSError):
        (model_dir / FILE).write_text(json.dumps(facts) + "\n")


def read(model_dir: Path) -> dict[str, Any] | None:
    """Returns what was written, or None if there is nothing, or not all of it."""
    try:
        return dict(json.loads((model_dir / FILE).read_text()))
    except (OSError, ValueError):
        return None


def remove(model_dir: Path) -> None:
    """Removes it, at the beginning of a start."""
    with contextlib.suppress(OSError):
        (model_dir / FILE).unlink(missing_ok=True)
