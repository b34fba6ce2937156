"""Connections between the watchdogs of a job, over TCP.

A watchdog connects to that of rank 0, the monitor, and sends the secret of the job and
its rank. The monitor answers with a greeting.
"""

import contextlib
import os
import select
import socket
import time

from resnet.watchdog.messages import Channel, Message

CONNECT_SECONDS = 5.0
_GREETING = b"hello\n"


def listen() -> socket.socket:
    """Returns a socket of the monitor for connections to a port that is free."""
    return socket.create_server(("", 0), backlog=4096)


def accept(listener: socket.socket) -> Channel | None:
    """Returns a new connection of the monitor; None if it is lost already.

    Args:
        listener: The socket that `listen` returned.
    """
    with contextlib.suppress(OSError):  # Closed again, or too many open files.
        connection, _ = listener.accept()
        connection.setblocking(False)
        return Channel(connection)
    return None


def greet(channel: Channel) -> None:
    """Answers a watchdog of this job."""
    with contextlib.suppress(OSError):
        os.write(channel.fileno(), _GREETING)


def connect(monitor: Message, token: str, rank: int) -> Channel | None:
    """Returns a connection to the monitor, at the first of its addresses that answers.

    Args:
        monitor: The `addresses` and the `port` of the monitor.
        token: The secret of the job.
        rank: The rank of this watchdog.

    Returns:
        The connection; None if no address answers.
    """
    for address in monitor["addresses"]:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(
                (address, monitor["port"]), CONNECT_SECONDS
            )
            channel = Channel(connection)
            channel.send({"token": token, "rank": rank})
            if connection.recv(len(_GREETING)) == _GREETING:
                connection.setblocking(False)
                return channel
            connection.close()
    return None


class Attempts:
    """The attempts of a watchdog to connect to the monitor.

    Attributes:
        host: Name of the monitor's host.
    """

    def __init__(self, monitor: Message, token: str, rank: int) -> None:
        """Makes no attempt yet.

        Args:
            monitor: The `host`, the `addresses` and the `port` of the monitor.
            token: The secret of the job.
            rank: The rank of this watchdog.
        """
        self.host: str = monitor["host"]
        self._monitor, self._token, self._rank = monitor, token, rank
        self._num_failed = 0

    def connect(self) -> Channel | None:
        """Returns a connection to the monitor; None if no address answers."""
        channel = connect(self._monitor, self._token, self._rank)
        self._num_failed += channel is None
        return channel

    def warning(self, name: str) -> str | None:
        """Returns a warning after the second failure, None after others.

        After the first one the job may just be ending.

        Args:
            name: The rank and its host.
        """
        if self._num_failed != 2:
            return None
        return (
            f"warning: the watchdog of {name} can't connect to that of rank 0 on"
            f" {self.host} at {', '.join(self._monitor['addresses'])}, port"
            f" {self._monitor['port']}. It retries, and monitors only its own rank"
            " until then."
        )


def send_and_await_end(channel: Channel, message: Message) -> None:
    """Sends a message to the monitor, and waits until that ends the job.

    It waits for at most `CONNECT_SECONDS`.
    """
    channel.send(message)
    deadline = time.monotonic() + CONNECT_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        select.select([channel], [], [], left)
        messages = channel.receive()
        if messages is None or any("kill" in answer for answer in messages):
            return
