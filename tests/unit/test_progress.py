import dataclasses
import fcntl
import io
import os
import pty
import struct
import sys
import termios
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from absl import logging

from resnet.base import output, text
from resnet.config.config import Config
from resnet.metrics import progress
from resnet.metrics.progress import Progress, find_terminal


@pytest.fixture(autouse=True)
def verbosity():
    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    yield
    logging.set_verbosity(before)


@pytest.fixture
def config(make_config) -> Config:
    return make_config(global_batch_size=50, class_names=("a", "b"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch) -> types.SimpleNamespace:
    """A clock that advances only when the test says so."""
    clock = types.SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def log(monkeypatch, capsys) -> Callable[[], str]:
    """Returns what was written to standard error, which is no terminal."""
    monkeypatch.setattr(progress, "find_terminal", lambda: None)
    return lambda: capsys.readouterr().err


def test_a_log_gets_whole_lines(config, clock, log):
    shown = Progress(config, 0, 0)
    for step in range(1, 11):
        clock.now += 30 if step == 1 else 0.5
        shown.step_done()
    # Nine steps of 50 images in 4.5 seconds; the first one isn't timed.
    assert shown.show(
        {
            "loss": 3.0,
            "cross_entropy": 2.5,
            "weight_penalty": 0.5,
            "learning_rate": 0.05,
        }
    ) == pytest.approx(100)
    shown.say("evaluated")
    shown.close()
    # 90 steps of 50 images are left: 45 seconds.
    line = "step 10/100  epoch 1.00  cross-entropy 2.5000  lr 0.05  penalty 0.5000"
    assert log() == f"{line}  100.0 images/s  0:45 left\nevaluated\n"
    for _ in range(4):  # Each line is timed from the one before.
        clock.now += 0.25
        shown.step_done()
    assert shown.show({"loss": 1.0, "learning_rate": 0.1}) == pytest.approx(200)


def test_slow_steps_get_lines_and_the_time_left_is_that_of_the_last_minute(
    config, clock, log
):
    shown = Progress(config, 0, 0)
    for seconds in (10, 10, 1, 10, 5):
        clock.now += seconds
        shown.step_done()
        shown.show_if_silent()
    lines = log().splitlines()
    # Steps 2 and 5, 20 and 36 seconds after the start; the first step isn't timed.
    assert [line.split("  ")[0] for line in lines] == ["step 2/100", "step 5/100"]
    assert lines[1].endswith("  10:18 left")  # 95 steps of (10 + 1 + 10 + 5) / 4 s.
    for _ in range(8):  # Steps become faster, and a minute later only they count.
        clock.now += 10
        for _ in range(10):
            shown.step_done()
        shown.show({})
    assert log().splitlines()[-1].endswith("  0:15 left")  # 15 steps of a second.


def test_the_time_left_counts_pixels(config, clock, log):
    (phase,) = config.phases
    small = dataclasses.replace(phase, image_size=24, num_steps=40)
    large = dataclasses.replace(phase, image_size=48, num_steps=60)
    shown = Progress(dataclasses.replace(config, phases=(small, large)), 0, 0)
    for _ in range(21):
        clock.now += 1
        shown.step_done()
    shown.show({})
    # 19 steps of a second and 60 of 48/24 squared as many; the first isn't timed.
    assert log().endswith("  4:19 left\n")
    for _ in range(20):
        clock.now += 2
        shown.step_done()
    shown.show({})
    # 39 steps of 24 px and one of 48 px, as long as 43, took 20 + 40 s; 59 are left.
    assert log().endswith(f"  {text.clock(59 * 4 / 43 * 60)} left\n")


@pytest.mark.parametrize("num_before", [0, 2])
def test_the_time_of_a_pause_does_not_count(config, clock, log, num_before):
    shown = Progress(config, 0, 0)
    for _ in range(num_before):
        clock.now += 1
        shown.step_done()
    with shown.paused():  # A resumed run begins with an evaluation that is due.
        clock.now += 500
    for _ in range(2):
        clock.now += 1
        shown.step_done()
    assert shown.show({"loss": 1.0, "learning_rate": 0.1}) == pytest.approx(50)


def test_a_terminal_gets_a_bar_that_is_drawn_over(config, clock, monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stderr", output.stream(writer, None))
    monkeypatch.setattr(progress, "find_terminal", lambda: Path("/dev/stderr"))
    monkeypatch.setenv("COLUMNS", "90")
    shown = Progress(config, 0, 0)
    for _ in range(2):
        for _ in range(50):
            shown.step_done()
        shown.show({"loss": 1.0, "learning_rate": 0.1})
    print("warning: slow", file=sys.stderr)  # On a line of its own.
    shown.show({"loss": 1.0, "learning_rate": 0.1})
    shown.say("done")
    shown.close()
    shown.show({"loss": 1.0, "learning_rate": 0.1})
    shown.close()
    lines = os.read(reader, 10_000).decode().split("\n")
    first, second = lines[0].split("\r")[1:]
    assert first.startswith(f"[{'=' * 10}{' ' * 10}] step 50/100")
    assert second.startswith(f"[{'=' * 20}] step 100/100")
    assert len(first) == len(second) == 89  # A full line would make the cursor jump.
    assert lines[1:] == ["warning: slow", f"\r{second}", "done", f"\r{second}", ""]
    os.close(reader)
    os.close(writer)


def test_a_terminal_is_where_standard_error_goes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert find_terminal() == Path("/dev/stderr")


LONG = {"step": "step 4680/4680", "epoch": "epoch 90.00"}
LONG |= {"cross_entropy": "cross-entropy 6.1234", "weight_penalty": "penalty 0.1234"}
LONG |= {"learning_rate": "lr 0.0123457", "speed": "12,345.6 images/s"}
LONG |= {"time": "1:52:10 left"}


@pytest.mark.parametrize(
    ("width", "bar", "left_out"),
    [
        (199, f"[{'=' * 5}{' ' * 15}] ", set()),
        # Speed and time are last to go.
        (79, "", {"weight_penalty", "learning_rate", "epoch"}),
    ],
)
def test_a_line_has_what_fits(width, bar, left_out):
    texts = [text for name, text in LONG.items() if name not in left_out]
    assert progress.fit(LONG, 0.25, width) == bar + "  ".join(texts)
    assert all(len(progress.fit(LONG, 0.5, width)) <= width for width in range(50, 201))


@pytest.mark.parametrize(("stated", "columns"), [(61, 61), (0, 80)])
def test_the_launchers_terminal_tells_its_width(proc, monkeypatch, stated, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    controller, terminal = pty.openpty()
    try:
        size = struct.pack("HHHH", 24, stated, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        add_process(proc, 20, "mpirun", 1, os.ttyname(terminal))
        assert progress.columns(find_terminal(proc)) == columns
        assert progress.columns(proc / "gone") == 80
    finally:
        os.close(controller)
        os.close(terminal)


def test_other_ranks_are_silent_and_the_first_step_alone_has_no_speed(
    config, clock, log
):
    for rank in (0, 1):
        shown = Progress(config, 0, rank)
        shown.step_done()
        assert shown.show({"loss": 1.0}) == 0
        clock.now += 1
        shown.step_done()
        shown.say("something")
        assert shown.show({"loss": 1.0}) == pytest.approx(50)
        shown.close()
        lines = log().splitlines()
        assert len(lines) == (0 if rank else 3)
        assert not any("left" in line for line in lines[:1])


def add_process(proc, pid: int, name: str, parent: int, error_output: str) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    name += "\xff"  # Names of processes needn't be UTF-8.
    (folder / "comm").write_text(name + "\n", "latin1")
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1\n", "latin1")
    (folder / "fd" / "2").symlink_to(error_output)


@pytest.fixture
def proc(tmp_path, monkeypatch, capsys):
    """A process tree above this process, whose parent is 20 and which has a pipe."""
    monkeypatch.setattr(os, "getppid", lambda: 20)
    return tmp_path


@pytest.mark.parametrize("name", ["mpirun", "prterun", "mpirun (my) x)"])
def test_a_launchers_terminal_is_the_ranks(proc, name):
    add_process(proc, 20, name, 10, "pipe:[1]")
    add_process(proc, 10, "mpiexec.hydra", 5, "/dev/pts/3")
    assert find_terminal(proc) == Path("/dev/pts/3")


@pytest.mark.parametrize(
    "processes",
    [
        [],  # They can't be seen.
        [(20, "mpirun", 10, "/home/me/log"), (10, "bash", 1, "/dev/pts/3")],
        [(20, "bash", 1, "/dev/pts/3")],  # A shell's is not that of its pipe.
        [(20, "mpirun", 1, "pipe:[1]"), (1, "mpirun", 0, "/dev/pts/0")],
    ],
)
def test_what_is_no_launchers_terminal_is_none(proc, processes):
    for process in processes:
        add_process(proc, *process)
    assert find_terminal(proc) is None
