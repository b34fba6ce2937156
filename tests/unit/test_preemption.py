import os
import pty
import signal
import subprocess
import sys
import time
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1

import pytest

from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.processes import completed

SOON = 30.0
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

# Computes for ever in one call of C, in which Python calls no handler.
COMPUTING = """
import ctypes, os, signal, sys
from resnet.runtime import preemption
preemption._SAME_KEYSTROKE_SECONDS = float(sys.argv[1])
signals = preemption.StopSignals()
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # As host_warnings does.
mutex, lock = ctypes.create_string_buffer(256), ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
print("ready", flush=True)
lock(mutex)
"""

# A module's variables are deleted when Python has replaced the handlers.
LATE = """
import os, sys
from resnet.runtime import preemption, program
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=int(sys.argv[1])):
        kill(pid, number)
late = Late()
signals = preemption.StopSignals()
def main(argv, process, communicator):
    if len(argv) > 2:
        raise preemption.Preempted("stopped")
sys.exit(program.run(main, sys.argv))
"""

# Ends when it is asked to, after printing to a terminal that isn't there any more.
HUNG_UP = """
import fcntl, sys, termios, time
from resnet.base import program
from resnet.runtime import preemption, program
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Its terminal from now on.
signals = preemption.StopSignals()
print("ready", flush=True)
def main(argv, process, communicator):
    while not signals.seen:
        time.sleep(0.01)
    print("saving", file=sys.stderr, flush=True)
    print("saving")
    open(argv[1], "w").close()
    raise preemption.Preempted("stopped")
sys.exit(program.run(main, sys.argv))
"""


@pytest.fixture
def start():
    """Returns `start(same_keystroke_seconds, program)`, which starts the program."""
    started = []

    def start(
        same_keystroke_seconds: float, program: str = PROGRAM, **environ: str
    ) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(same_keystroke_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [SIGTERM, SIGUSR1, SIGINT, SIGHUP])
def test_a_signal_is_noted_and_more_of_them_do_no_harm(start, number):
    process = start(1000.0)
    process.send_signal(number)
    assert process.stdout.readline() == f"{number.name}\n"
    told = process.stderr.readline()  # By a thread, before the process may end.
    for again in (SIGTERM, SIGUSR1, SIGINT):  # The last is the same keystroke's.
        process.send_signal(again)
    stdout, stderr = process.communicate("go on\n")
    assert (stdout, process.returncode) == ("saved\n", 0)
    assert told.startswith(f"{number.name}: stopping")
    assert ("Ctrl-C again" in told) == (number == SIGINT)
    assert stderr == ""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_second_keystroke_ends_a_process_that_computes(start, rank):
    place = {"SIZE": "2", "LOCAL_RANK": rank, "LOCAL_SIZE": "2", "RANK": rank}
    variables = {f"OMPI_COMM_WORLD_{name}": value for name, value in place.items()}
    process = start(0.1, COMPUTING, **variables)
    for word in ("SIGINT: ", "exit code 130"):
        time.sleep(0.2)
        process.send_signal(SIGINT)
        if rank == "0":  # Only this rank says it, and says it at once.
            assert word in process.stderr.readline()
    assert process.wait(SOON) == 130
    assert process.stderr.read() == ""


@pytest.mark.parametrize("ignored", [SIGINT, SIGHUP])
def test_a_start_may_ignore_the_hangup_but_not_the_interrupt(start, ignored):
    """As of a program that is started in the background, or by nohup."""
    previous = signal.signal(ignored, signal.SIG_IGN)
    try:
        process = start(1000.0)
    finally:
        signal.signal(ignored, previous)
    process.send_signal(ignored)
    time.sleep(0.1)
    process.send_signal(SIGTERM)
    noted = "SIGINT" if ignored == SIGINT else "SIGTERM"
    assert process.stdout.readline() == f"{noted}\n"


@pytest.mark.parametrize(
    ("number", "words", "code"),
    [(SIGTERM, (), 0), (SIGINT, (), 0), (SIGHUP, ("stop",), REQUEUE_EXIT_CODE)],
)
def test_signals_while_python_ends_do_not_change_the_exit_code(number, words, code):
    words = (sys.executable, "-c", LATE, str(int(number)), *words)
    done = completed(words)
    assert done.returncode == code, done.stderr


def test_a_terminal_that_is_closed_stops_the_program_as_sigterm_does(tmp_path):
    saved = tmp_path / "saved"
    keyboard, screen = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", HUNG_UP, str(saved)],
        stdin=screen,
        stdout=screen,
        stderr=screen,
        start_new_session=True,
    ) as process:
        os.close(screen)
        assert os.read(keyboard, 100).startswith(b"ready")
        os.close(keyboard)
        assert process.wait() == REQUEUE_EXIT_CODE
    assert saved.exists()
