import signal
import subprocess
import sys
import time
from signal import SIGINT, SIGTERM, SIGUSR1

import pytest

PROGRAM = """
import sys, time
from resnet.runtime import preemption
preemption._SAME_KEYSTROKE_SECONDS = float(sys.argv[1])
signals = preemption.StopSignals()
print("ready", flush=True)
while not signals.seen:
    time.sleep(0.01)
print(signals.seen, flush=True)
sys.stdin.readline()
print("saved", flush=True)
"""


@pytest.fixture
def start():
    """Returns `start(same_keystroke_seconds)`, which starts the program."""
    started = []

    def start(same_keystroke_seconds: float) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(same_keystroke_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [SIGTERM, SIGUSR1, SIGINT])
def test_a_signal_is_noted_and_more_of_them_do_no_harm(start, number):
    process = start(1000.0)
    process.send_signal(number)
    assert process.stdout.readline() == f"{number.name}\n"
    for again in (SIGTERM, SIGUSR1, SIGINT):  # The last is the same keystroke's.
        process.send_signal(again)
    assert process.communicate("go on\n")[0] == "saved\n"
    assert process.returncode == 0


def test_a_second_keystroke_ends_the_process(start):
    process = start(0.1)
    process.send_signal(SIGINT)
    assert process.stdout.readline() == "SIGINT\n"
    time.sleep(0.2)
    process.send_signal(SIGINT)
    assert process.wait() == 130
    assert process.stdout.read() == ""


def test_the_interrupt_is_noted_where_a_shell_has_it_ignored(start):
    """As of a program that is started in the background."""
    previous = signal.signal(SIGINT, signal.SIG_IGN)
    try:
        process = start(1000.0)
    finally:
        signal.signal(SIGINT, previous)
    process.send_signal(SIGINT)
    assert process.stdout.readline() == "SIGINT\n"
