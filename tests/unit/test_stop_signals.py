import subprocess
import sys
import time
from signal import SIGINT, SIGTERM, SIGUSR1

import pytest

PROGRAM = """
import time
from resnet.stop_signals import StopSignals
signals = StopSignals()
print("ready", flush=True)
while not signals.seen:
    time.sleep(0.01)
print(signals.seen, flush=True)
time.sleep(3)
print("saved", flush=True)
"""


@pytest.fixture
def process():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout.readline() == "ready\n"
        yield started
        started.kill()


@pytest.mark.parametrize("number", [SIGTERM, SIGUSR1, SIGINT])
def test_a_signal_is_noted_and_more_of_them_do_no_harm(process, number):
    process.send_signal(number)
    assert process.stdout.readline() == f"{number.name}\n"
    for again in (SIGTERM, SIGUSR1, SIGINT):  # The last is the same keystroke's.
        process.send_signal(again)
    assert process.stdout.readline() == "saved\n"
    assert process.wait() == 0


def test_a_second_keystroke_ends_the_process(process):
    process.send_signal(SIGINT)
    assert process.stdout.readline() == "SIGINT\n"
    time.sleep(1.2)
    process.send_signal(SIGINT)
    assert process.wait() == 130
    assert process.stdout.read() == ""
