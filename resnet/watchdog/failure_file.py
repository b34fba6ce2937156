"""`model_dir/failure.json`: how the last start failed, for programs that restart it.

`history.jsonl` keeps the failures of all starts.
"""

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

from resnet.watchdog import history

FILE = "failure.json"
_STEP = re.compile(r"\bstep (\d+)")


def write(model_dir: Path, reason: str, is_locked: bool = False) -> None:
    """Writes the reason, the step that it names, and the time.

    The folder is created, since a run may fail before it has done so. Disk errors are
    ignored, since the failure itself matters more. `is_locked` says that another job
    holds the run's lock.
    """
    match = _STEP.search(reason)
    facts = {
        "step": int(match[1]) if match else None,
        "reason": reason,
        "locked": is_locked,
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    with contextlib.suppress(OSError):
        model_dir.mkdir(parents=True, exist_ok=True)
        (model_dir / FILE).write_text(json.dumps(facts) + "\n")
    history.append(model_dir, "failure", step=facts["step"], reason=reason)


def read(model_dir: Path) -> dict[str, Any] | None:
    """Returns the contents; None if there is no file, or an incomplete one."""
    try:
        return dict(json.loads((model_dir / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove(model_dir: Path) -> None:
    """Removes the file; to be called at each start."""
    with contextlib.suppress(OSError):
        (model_dir / FILE).unlink(missing_ok=True)
