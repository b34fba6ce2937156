"""The progress of the training: a bar on a terminal, plain lines in a log."""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from absl import logging

from resnet.base import output
from resnet.base.text import clock
from resnet.config import phases
from resnet.config.config import Config
from resnet.hardware.launchers import LAUNCHERS
from resnet.metrics.table import SERIES

_BAR_WIDTH = 20
_SHORTEST_BAR = 8
_WINDOW_SECONDS = 60.0  # The time left follows from the speed in so long a time.
_SILENT_SECONDS = 15.0  # After as long without a line, a step gets a short one.
_USUAL_COLUMNS = 80  # For terminals whose width is unknown.
_PROCESSES = tuple(
    name for launcher in LAUNCHERS.values() for name in launcher.processes
)


class Progress:
    """Prints the progress on rank 0's standard error, unless its log is quiet."""

    def __init__(self, config: Config, start_step: int, rank: int) -> None:
        self._config = config
        self._visible = rank == 0 and logging.level_info()
        self._terminal = find_terminal() if self._visible else None
        self._marks: deque[tuple[float, int]] = deque()  # Times and steps of lines.
        self._shown_at = time.monotonic()
        self._step = start_step

    def step_done(self) -> None:
        """Counts a step. The first one isn't timed, since it traces the graph."""
        self._step += 1
        if not self._marks:
            self._mark()

    def show(self, numbers: Mapping[str, float]) -> float:
        """Prints the numbers whose row has `progress`; returns images per second."""
        speed = self._speed_since(self._marks[-1]) if self._marks else 0.0
        shown = {**numbers, "images_per_second": speed}
        self._print(
            {
                name: series.progress.format(shown[name])
                for name, series in SERIES.items()
                if series.progress and name in shown
            }
        )
        self._mark()
        return speed

    def show_if_silent(self) -> None:
        """Prints the step, if nothing was printed for a time, which slow steps take."""
        if time.monotonic() - self._shown_at >= _SILENT_SECONDS:
            self._print({})

    def _print(self, numbers: Mapping[str, str]) -> None:
        """Prints the step, the numbers, and the time left by the speed of late."""
        config, step = self._config, self._step
        fields = {
            "step": f"step {step}/{config.train_steps}",
            "epoch": f"epoch {config.epoch(step):.2f}",
            **numbers,
        }
        at, marked = self._marks[0] if self._marks else (0.0, step)
        if done := phases.num_pixels(config.phases, marked, step):
            left = phases.num_pixels(config.phases, step, config.train_steps)
            fields["time"] = f"{clock(left / done * (time.monotonic() - at))} left"
        self._shown_at = time.monotonic()
        if self._terminal is None:
            self._write("  ".join(fields.values()) + "\n")
        else:
            # A full line would make the cursor jump to the next.
            width = columns(self._terminal) - 1
            line = fit(fields, step / config.train_steps, width)
            self._write(f"\r{line:<{width}}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time of the block from the images per second."""
        before = time.monotonic()
        yield
        pause = time.monotonic() - before
        self._marks = deque((at + pause, step) for at, step in self._marks)

    def say(self, line: str) -> None:
        """Prints a separate line."""
        self._write(line + "\n")

    def close(self) -> None:
        """Ends the line of the bar."""
        if self._terminal is not None:
            output.write(sys.stderr.fileno(), b"", is_patient=False)

    def _mark(self) -> None:
        now = time.monotonic()
        self._marks.append((now, self._step))
        while len(self._marks) > 1 and self._marks[1][0] <= now - _WINDOW_SECONDS:
            self._marks.popleft()

    def _speed_since(self, mark: tuple[float, int]) -> float:
        """Returns images per second; 0 if they are unknown."""
        elapsed, steps = time.monotonic() - mark[0], self._step - mark[1]
        return steps * self._config.global_batch_size / elapsed if elapsed else 0.0

    def _write(self, text: str) -> None:
        if self._visible:
            sys.stderr.write(text)
            sys.stderr.flush()


def fit(fields: Mapping[str, str], done: float, width: int) -> str:
    """Returns a line with a bar that is `done` to a fraction, at most `width` long.

    If it is too long, weight penalty, learning rate, epoch and bar are left out, in
    this order; then it is cut.
    """
    shown = dict(fields)
    for name in ("weight_penalty", "learning_rate", "epoch"):
        if len("  ".join(shown.values())) > width:
            shown.pop(name, None)
    text = "  ".join(shown.values())
    bar = min(_BAR_WIDTH, width - len(text) - len("[] "))
    if bar < _SHORTEST_BAR:
        return text[:width]
    return f"[{'=' * round(bar * done):<{bar}}] {text}"


def columns(terminal: Path) -> int:
    """Returns the number of columns of a terminal; COLUMNS overrides it."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        descriptor = os.open(terminal, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            return os.get_terminal_size(descriptor).columns or _USUAL_COLUMNS
        finally:
            os.close(descriptor)
    except OSError:
        return _USUAL_COLUMNS


def find_terminal(proc: Path = Path("/proc")) -> Path | None:
    """Returns the terminal that shows standard error, or None if no terminal does.

    It may be a pipe that launchers above this process copy to their standard error.
    """
    if sys.stderr.isatty():
        return Path("/dev/stderr")
    pid = os.getppid()
    while pid > 1:
        try:
            name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
            status = (proc / str(pid) / "stat").read_text(errors="replace")
            error_output = os.readlink(proc / str(pid) / "fd" / "2")
        except OSError:
            return None
        if not name.startswith(_PROCESSES):
            return None
        if error_output.startswith(("/dev/pts/", "/dev/tty")):
            return Path(error_output)
        pid = int(status.rpartition(")")[2].split()[1])
    return None
