"""`model_dir/history.jsonl`: the starts, ends and failures of a run.

Each line is a JSON object with `event`, `time` (seconds since 1970) and what belongs to
the event. Unlike the metrics, no line is ever removed: a run that resumes from an older
step keeps the failure that made it do so.
"""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

FILE = "history.jsonl"


def append(model_dir: Path, event: str, **facts: Any) -> None:
    """Appends an event; disk errors are ignored, since they must not end a run.

    Several processes may append to one file: a line is written at once.

    The event is "start", "end", "export", "failure" or, of the supervisor,
    "supervisor"; the facts are JSON values that belong to it.
    """
    line = json.dumps({"event": event, "time": round(time.time(), 1), **facts}) + "\n"
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(model_dir / FILE, flags, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def read(model_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the events, and the number of lines that can't be read.

    Without a file there are none.
    """
    try:
        texts = (model_dir / FILE).read_bytes().split(b"\n")
    except OSError:
        return [], 0
    events, num_unreadable = [], 0
    for text in filter(None, texts):
        try:
            event = json.loads(text)
            is_event = isinstance(event["event"], str)
            is_event = is_event and isinstance(event["time"], int | float)
        except (ValueError, TypeError, KeyError, RecursionError):
            is_event = False
        if is_event:
            events.append(event)
        else:
            num_unreadable += 1
    return events, num_unreadable
