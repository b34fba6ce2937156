"""A port of the job answers only who knows its secret, shown with Python's sockets.

The processes of the job are guarded ones of their own; the test itself is a stranger.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from resnet.base.errors import UserError
from resnet.training.parameter_servers import private_ports
from resnet.training.parameter_servers.private_ports import Guard, held_endpoint
from resnet.training.parameter_servers.roles import SERVER, Endpoint, Role
from resnet.watchdog import client
from tests.sources import ROOT

GUARDED = """
import json, socket, sys
from resnet.training.parameter_servers.private_ports import Guard
guard = Guard(*json.loads(sys.argv[1]))
guard.install("_socket")
"""
SERVE = """
listener = socket.socket()
listener.bind(("0.0.0.0", guard.port))
listener.listen()
print(listener.getsockname()[0], flush=True)
while True:
    with listener.accept()[0] as connection:
        connection.sendall(b"heard " + connection.recv(100))
"""
# It waits for a connection inside `connect`, and afterwards, as gRPC does.
ASK = """
for timeout in (None, 10):
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout) as own:
            own.sendall(b"me")
            print(own.recv(100).decode())
    except ConnectionRefusedError:
        print("refused")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    """Yields the endpoint of a guarded server."""
    with held_endpoint(Role(SERVER, 0), on_one_host=True) as endpoint:
        command = [sys.executable, "-c", GUARDED + SERVE]
        command.append(json.dumps(Guard.of(endpoint, [endpoint])))
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"127.0.0.1\n"  # It asked for 0.0.0.0.
            yield endpoint
            process.kill()


def ask_as_job(server: Endpoint, port: int) -> list[str]:
    """Returns what a guarded process hears at a port, in two connections."""
    command = [sys.executable, "-c", GUARDED + ASK]
    command += [json.dumps(Guard.of(None, [server])), str(port)]
    return subprocess.check_output(command, cwd=ROOT, text=True).splitlines()


def ask(server: Endpoint, words: bytes) -> bytes:
    """Returns what a server answers to a stranger."""
    address = ("127.0.0.1", server.port)
    with suppress(ConnectionError), socket.create_connection(address, 10) as connection:
        connection.sendall(words)
        return connection.recv(100)
    return b""


def test_strangers_hear_nothing_and_delay_nobody(server):
    address, right = ("127.0.0.1", server.port), server.secret
    silent = [socket.create_connection(address) for _ in range(20)]
    flipped = [bytearray(right) for _ in range(8)]
    for index, secret in enumerate(flipped):
        secret[4 * index + 3] ^= 1 << index
    for words in (
        *(bytes(secret) + b"me" for secret in flipped),
        *(right[:31], right[1:] + b"me", b"\0" + right + b"me"),
        *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"{}\n{}\n", os.urandom(100_000)),
    ):
        assert ask(server, words) == b"", words
    assert ask(server, right + b"me") == b"heard me"
    assert ask_as_job(server, server.port) == ["heard me"] * 2
    for connection in silent:
        connection.close()


def test_a_process_of_the_job_connects_to_nobody_else(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert ask_as_job(server, other.getsockname()[1]) == ["refused"] * 2
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_nobody_takes_the_port_of_a_server_that_is_restarted():
    with held_endpoint(Role(SERVER, 0), on_one_host=True) as endpoint:
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", endpoint.port))
        assert ask(endpoint, endpoint.secret) == b""


def test_addresses_that_lead_elsewhere_are_left_out(monkeypatch):
    own = ["10.0.0.1", "172.17.0.1", "127.0.0.1"]
    monkeypatch.setattr(client, "own_addresses", lambda: own)
    others = ["10.0.0.2", "172.17.0.1", "127.0.0.1"]
    for theirs, expected in ((own, own), (others, others[:1]), (own[2:], own[2:])):
        server = Endpoint("ps", 0, theirs, 9, b"")
        assert private_ports.addresses_from_here(server) == expected


def test_nothing_starts_without_the_library_or_with_another_tensorflow(monkeypatch):
    with pytest.raises(RuntimeError, match="must connect by connect, but does not"):
        Guard("", "00" * 32, 0, True).install("no such library")
    monkeypatch.setattr(private_ports, "LIBRARY", ROOT / "none.so")
    with pytest.raises(UserError, match="anyone who can connect to its ports can act"):
        private_ports.require_library()
