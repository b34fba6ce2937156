"""The monitor's port: strangers change nothing, and whatever ends it is recorded.

    python -m tests.unit.test_monitor_port 1000000

sends so many hostile inputs to a monitor in this process.
"""

import argparse
import contextlib
import errno
import io
import json
import os
import random
import selectors
import socket
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from resnet.watchdog import connections
from resnet.watchdog.connections import Attempts
from resnet.watchdog.monitor import Watchdog
from resnet.watchdog.stalls import Peer

TOKEN, NUM_RANKS = "the secret of the job", 3
ROOM_BYTES = 50_000  # For which a socket has room.
WORDS = (
    *(b"\n", b"{}\n{}\n", b"[" * 60_000, b'{"a":' * 5_000, b"\0" * 300, b"x" * 50_000),
    *(b"1e999", b"NaN", b"9" * 5_000, b'"\\ud800"', b"\xff\xfe", b"null", b"true"),
    *(b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"2\n", b"-1\n", b"\xd9\xa1\n"),
)
MESSAGES = [
    json.dumps(message).encode() + b"\n"
    for message in (
        Peer(1, "node1", "computing step 7", True, True).report(),
        {"died": "rank 1 has died", "at": 1.5},
        {"failed": "Traceback:\n  a line\nTypeError: a bug"},
        {"warning": "slow", "level": "warning"},
        {"orphaned": "the launcher has died"},
        {"deregister": True},
    )
]


class Monitor(Watchdog):
    """The watchdog of rank 0 in this process, which ends none."""

    def __init__(self, model_dir: str = "") -> None:
        reader, self._end_of_rank = os.pipe()
        flags = {"rank": 0, "num_ranks": NUM_RANKS, "host": "node0", "pid": os.getpid()}
        flags |= {"parent": os.getppid(), "outlives_launcher": False, "token": TOKEN}
        flags |= {"stall_seconds": 60.0, "model_dir": model_dir, "scratch_dir": ""}
        flags |= {"shared_memory": [], "on_one_node": True}
        stdin = mock.patch.object(sys, "stdin", SimpleNamespace(fileno=lambda: reader))
        with stdin, contextlib.redirect_stdout(io.StringIO()):
            super().__init__(argparse.Namespace(**flags))
        self.listener = self._listener
        self._selector.unregister(self.listener.socket)
        self.listener.socket.close()
        # What is sent to it arrives at once, and leaves no port in use for a minute.
        self.listener.socket = socket.socket(socket.AF_UNIX)
        self.listener.socket.bind("")
        self.listener.socket.listen()
        self.listener.socket.setblocking(False)
        self._selector.register(self.listener.socket, selectors.EVENT_READ)
        self.effects = []
        self._rank.kill = lambda: self.effects.append("killed")
        printed = self.effects.append
        self._output = SimpleNamespace(
            print=printed, print_lines=self.effects.extend, finish=lambda: None
        )

    def close(self) -> None:
        self._deregister()
        self._selector.close()
        for descriptor in (self._own_rank.fileno(), self._end_of_rank):
            os.close(descriptor)

    def connect(self) -> socket.socket:
        """Returns a new connection, which it has accepted."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.listener.socket.getsockname())
        self.poll(0)
        return connection

    def send(self, connection: socket.socket, data: bytes) -> None:
        """Sends the beginning of data, and has it handled."""
        with contextlib.suppress(OSError):
            connection.send(data[:ROOM_BYTES], socket.MSG_DONTWAIT)
        self.poll(0)


def fuzz(monitor: Monitor, number: int, seed: int = 0) -> None:
    """Sends so many inputs; AssertionError if one of a stranger has an effect.

    A third are any data, a third answers to the challenge, a third messages of rank 1,
    of which only an exception is an error.
    """
    chance, held, rank_1 = random.Random(seed), [], monitor.connect()
    for index in range(number):
        if index % 3 == 2:
            if not monitor._watchdogs:
                rank_1.close()
                rank_1 = monitor.connect()
                monitor.send(rank_1, answer_to(rank_1))
            (channel,) = monitor._watchdogs
            monitor.send(rank_1, mutated(chance, chance.choice(MESSAGES)))
            assert len(channel._received) <= connections._MAX_MESSAGE_BYTES
            if index % 50 == 0:
                monitor._tick(time.monotonic())
            monitor._kill_at, monitor._has_reported_orphan = None, False
            monitor.effects.clear()
            continue
        before = dict(monitor._peers), list(monitor._watchdogs)
        held.append(stranger := monitor.connect())
        data = mutated(chance, chance.choice([*WORDS, *MESSAGES]))
        if index % 3 == 1:
            proof = answer_to(stranger)[: connections._PROOF_BYTES]
            while (data := mutated(chance, proof + b"1\n")).startswith(proof):
                pass
        monitor.send(stranger, data)
        assert before == (monitor._peers, monitor._watchdogs)
        assert not monitor.effects
        assert len(monitor.listener.unknown) <= NUM_RANKS + 64
        if len(held) > 100 or chance.random() < 0.1:
            held.pop(chance.randrange(len(held))).close()
    for connection in (*held, rank_1):
        connection.close()
    monitor.poll(0)
    monitor._kill_at = None  # The end of rank 1 would have ended the job.
    monitor.effects.clear()


def answer_to(connection: socket.socket, token: str = TOKEN) -> bytes:
    """Returns the answer of rank 1 to the challenge that a connection has received."""
    challenge = connection.recv(connections._CHALLENGE_BYTES)
    return connections._proof(token, b"watchdog", challenge) + b"1\n"


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Returns data with up to four changes."""
    for _ in range(chance.randrange(5)):
        start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        word = chance.choice((b"", data[start:end], chance.randbytes(1), *WORDS))
        data = data[:start] + word + data[min(end, start + chance.randrange(9)) :]
    return data


@pytest.fixture
def monitor(tmp_path):
    with contextlib.closing(Monitor(str(tmp_path))) as monitor:
        yield monitor


def test_no_input_of_a_stranger_has_an_effect_and_none_of_a_rank_is_an_error(monitor):
    fuzz(monitor, 3000)
    for token, num_known in (("another secret", 0), (TOKEN, 1)):
        with monitor.connect() as connection:
            monitor.send(connection, answer_to(connection, token))
            assert len(monitor._watchdogs) == num_known


def test_strangers_take_little_memory_and_no_more_than_five_seconds(
    monitor, monkeypatch
):
    unknown = monitor.listener.unknown
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(monitor.connect()) for _ in range(300)]
        assert len(unknown) == NUM_RANKS + 64
        for num_bytes, num_unknown in ((255, NUM_RANKS + 64), (1, 0)):
            for connection in held:
                monitor.send(connection, num_bytes * b"[")
            assert len(unknown) == num_unknown
        stack.enter_context(monitor.connect())
        now = time.monotonic()
        for seconds, num_unknown in ((4.9, 1), (5.1, 0)):
            later = SimpleNamespace(monotonic=lambda seconds=seconds: now + seconds)
            monkeypatch.setattr(connections, "time", later)
            monitor.poll(0)
            assert len(unknown) == num_unknown


def test_strangers_leave_open_files_to_others(monitor, monkeypatch):
    slept: list[float] = []
    full = OSError(errno.EMFILE, "too many open files")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(monitor.connect())
        monitor.listener._max_files = first.fileno() + 20
        for _ in range(40):
            stack.enter_context(monitor.connect())
        assert 0 < len(monitor.listener.unknown) < 20
        monkeypatch.setattr(connections, "time", SimpleNamespace(sleep=slept.append))
        monkeypatch.setattr(
            monitor.listener, "socket", mock.Mock(accept=mock.Mock(side_effect=full))
        )
        monitor.listener.accept()
    assert slept  # Since select returns at once as long as somebody wants to connect.


def test_who_does_not_know_the_secret_is_not_taken_for_the_monitor(monkeypatch):
    own, stranger = socket.socketpair()
    monkeypatch.setattr(socket, "create_connection", lambda *_: own)
    stranger.sendall(b"0" * 16 + b"1" * 64)
    place = {"host": "node0", "addresses": ["10.0.0.1"], "port": 1}
    assert Attempts(place, TOKEN, 1).connect() is None
    with stranger:
        assert TOKEN.encode() not in stranger.recv(1000)


if __name__ == "__main__":
    fuzzed = Monitor()
    for seed in range(int(sys.argv[1]) // 1000):
        fuzz(fuzzed, 1000, seed)
