"""`model_dir/history.jsonl`: the starts, ends and failures of a run.

Each line is a JSON object with `event`, `time` (seconds since 1970) and what belongs to
the event. Unlike the metrics, no line is ever removed: a run that resumes from an older
step keeps the failure that made it do so. `failure.json` says how the last start
failed, for programs that restart it.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILE, FAILURE_FILE = "history.jsonl", "failure.json"
SLOW, RECOVERED = "slow", "recovered"  # Of a host: below its usual speed, and back.
_STEP = re.compile(r"\bstep (\d+)")


def append(model_dir: Path, event: str, **facts: Any) -> None:
    """Appends an event; disk errors are ignored, since they must not end a run.

    The event is "start", "end", "export", "audit" (that has found a fault), `SLOW` or
    `RECOVERED` (of a host), "failure", "refusal" (of a second start), "verification" or
    "supervisor"; the facts are JSON values.
    Several processes may append to one file: a line is written at once. It begins anew
    after one that was cut off by a full disk.
    """
    line = json.dumps({"event": event, "time": round(time.time(), 1), **facts}) + "\n"
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        descriptor = os.open(model_dir / FILE, flags, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, b"\n" * is_cut + line.encode())
        finally:
            os.close(descriptor)


def read(model_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the events, none without a file, and the number of unreadable lines."""
    try:
        texts = (model_dir / FILE).read_bytes().split(b"\n")
    except OSError:
        return [], 0
    events, num_unreadable = [], 0
    for text in filter(None, texts):
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            event = json.loads(text)
            if isinstance(event["event"], str) and isinstance(
                event["time"], int | float
            ):
                events.append(event)
                continue
        num_unreadable += 1
    return events, num_unreadable


def slow_hosts(model_dir: Path) -> dict[str, float]:
    """Returns the hosts that were slow when the last start ended.

    The values are the parts that they had of their usual speed.
    """
    found: dict[str, float] = {}
    for event in read(model_dir)[0]:
        if event["event"] == "start":
            found.clear()
        elif event["event"] == SLOW:
            part = event.get("part")
            found[str(event.get("host"))] = part if isinstance(part, float) else 1.0
        elif event["event"] == RECOVERED:
            found.pop(str(event.get("host")), None)
    return found


def write_failure(
    model_dir: Path, reason: str, is_locked: bool = False, hosts: Sequence[str] = ()
) -> None:
    """Writes the reason of a failure, the step that it names, and the time.

    The folder is created, since a run may fail before it has done so. Disk errors are
    ignored. `is_locked` says that another job holds the run's lock; the next start is
    to leave `hosts` out.
    """
    match = _STEP.search(reason)
    facts = {
        "step": int(match[1]) if match else None,
        "reason": reason,
        "locked": is_locked,
        "hosts": list(hosts),
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    with contextlib.suppress(OSError):
        model_dir.mkdir(parents=True, exist_ok=True)
        (model_dir / FAILURE_FILE).write_text(json.dumps(facts) + "\n")
    event = "refusal" if is_locked else "failure"
    append(model_dir, event, step=facts["step"], reason=reason)


def read_failure(model_dir: Path) -> dict[str, Any] | None:
    """Returns what `write_failure` wrote; None without a file, or an incomplete one."""
    try:
        return dict(json.loads((model_dir / FAILURE_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove_failure(model_dir: Path) -> None:
    """Removes the file; to be called at each start."""
    with contextlib.suppress(OSError):
        (model_dir / FAILURE_FILE).unlink(missing_ok=True)


def remove_refusal(model_dir: Path) -> None:
    """Removes the file of a second start that the lock has refused meanwhile."""
    if (read_failure(model_dir) or {}).get("locked") is True:
        remove_failure(model_dir)
