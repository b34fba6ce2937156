"""Keeps the report of a run fresh while the run trains, in a process of its own.

It has the lowest priority, and ends by itself when the training has died.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from resnet.base import intervals, json_file
from resnet.base.intervals import Interval
from resnet.config.config import Config
from resnet.metrics import jsonl

FILE = "report.html"
LOG_FILE = "report.log"  # Why the page couldn't be written.
_POLL_SECONDS = 5.0
_LAST_SECONDS = 20.0  # For the last page, at the end of the training.
_TAIL_BYTES = 65_536  # More than a line of metrics has.
_REPOSITORY = Path(__file__).resolve().parents[2]
_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from resnet.report.refresh import main
main(*sys.argv[1:])
"""


@contextlib.contextmanager
def kept_fresh(config: Config, is_writer: bool) -> Iterator[None]:
    """Has the report written as often as the settings say, and at the end."""
    process = None
    if is_writer and config.report_every:
        sizes = (config.num_train_examples, config.global_batch_size)
        words = [config.model_dir, config.report_every, *map(str, sizes)]
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                [sys.executable, "-c", _START, str(_REPOSITORY), *words],
                stdin=subprocess.PIPE,
                # Not those of the training: mpirun waits until nobody holds them.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A signal to the training must not cut the page.
                start_new_session=True,
            )
    try:
        yield
    finally:
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.stdin.close()  # The process then writes the last page.
                process.wait(_LAST_SECONDS)


def main(model_dir: str, every: str, num_examples: str, batch_size: str) -> None:
    """Writes the page until standard input ends, and then a last time."""
    os.nice(19)  # The lowest priority.
    sizes = int(num_examples), int(batch_size)
    keep_fresh(Path(model_dir), intervals.parse(every, "--report_every"), sizes)


def keep_fresh(
    model_dir: Path,
    interval: Interval,
    sizes: tuple[int, int],
    ended: int = 0,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Writes the page when it is due, until the other end closes the pipe `ended`.

    `sizes` are the number of training examples and that of a global batch.
    """
    written_at, number = time.monotonic(), 0
    while not select.select([ended], [], [], poll_seconds)[0]:
        if interval.seconds:
            is_due = time.monotonic() - written_at >= interval.seconds
        else:
            step = last_step(model_dir / jsonl.FILE)
            reached = interval.number_at(step, *sizes)
            # A run that resumes from an older step counts again from there.
            is_due, number = reached > number, reached
        if is_due:
            written_at = time.monotonic()
            write(model_dir)
    write(model_dir)


def write(model_dir: Path) -> None:
    """Writes the page; an error is only noted in a file."""
    from resnet.report import page  # Here, since the training needn't load it.

    try:
        page.write([model_dir], model_dir / FILE)
    except Exception:
        with contextlib.suppress(OSError):
            (model_dir / LOG_FILE).write_text(traceback.format_exc())


def last_step(path: Path) -> int:
    """Returns the step of the last whole line of a metrics file; 0 if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            texts = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    lines, _ = json_file.parse_lines(texts[-1:], lambda line: int(line["step"]) >= 0)
    return int(lines[0]["step"]) if lines else 0
