"""Strangers get nothing from the TensorFlow servers of a job, and change nothing in it.

They are another user of the host and this process, which is on no host of two. A gRPC
server that listens to anybody answers the preface of HTTP/2 at once. Needs root.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.fault.hosts import Hosts

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.root]

PREFACE = rb"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash")
ASK = f"""
trap '' PIPE
exec 3<>/dev/tcp/%s/%d && echo connected
printf '{PREFACE.decode()}' >&3
timeout 5 head -c 9 <&3
"""


def port_of(pid: int) -> int:
    """Returns the port of gRPC in a process, which listens by IPv6; MPI does not."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(entry))
    lines = Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]
    (address,) = (
        words[1]
        for words in map(str.split, lines)
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets
    )
    return int(address.rpartition(":")[2], 16)


def answer_to_another_user(hosts: Hosts | None, rank: int, place: tuple) -> bytes:
    """Returns what a server answers to its host's user nobody, after "connected"."""
    words = ["ip", "netns", "exec", hosts.names[rank % 2]] if hosts else []
    words += [*AS_NOBODY, "-c", ASK % place]
    return subprocess.run(words, capture_output=True, timeout=60).stdout


def send(place: tuple, words: bytes) -> bytes:
    """Returns what a server answers."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(place, timeout=10) as connection,
    ):
        connection.sendall(words)
        return connection.recv(9)
    return b""


def test_strangers_get_nothing_and_change_nothing(start, hosts, outcome):
    job = start("--sync_mode=async", num_ranks=4)  # Rank 1 serves, 2 and 3 work.
    job.wait_for_step(7)
    processes = [(1, job.child_pid("ps", 0))]
    processes += [(2 + index, job.child_pid("worker", index)) for index in range(2)]
    if hosts is None:  # Elsewhere, this process can't reach the coordinator's server.
        processes.append((0, job.pid(0)))
    chance = random.Random(0)
    with contextlib.ExitStack() as silent:
        for rank, pid in processes:
            address = f"10.78.0.{10 + rank % 2}" if hosts else "127.0.0.1"
            place = (address, port_of(pid))
            assert answer_to_another_user(hosts, rank, place) == b"connected\n"
            for _ in range(300):
                hostile = chance.randbytes(chance.randrange(1, 5000))
                assert send(place, hostile) == b""
            assert send(place, PREFACE.decode("unicode_escape").encode()) == b""
            for _ in range(50):
                silent.enter_context(socket.create_connection(place))
        job.wait_for_step(job.step + 20)
    assert "restarted" not in job.output
    job.signal_mpirun(signal.SIGTERM)
    code = job.end(30)
    outcome("strangers at the ports of an asynchronous job, then SIGTERM", job, code)
    assert code == REQUEUE_EXIT_CODE, job.output
    assert job.leftovers() == []
