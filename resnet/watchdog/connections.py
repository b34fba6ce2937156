"""Connections and messages of the watchdogs of a job: a JSON object per line.

A watchdog connects to that of rank 0, the monitor, over TCP, and sends the secret of
the job and its rank. The monitor answers with a greeting. The rank beside a watchdog
writes to it through a pipe.
"""

import contextlib
import json
import os
import select
import socket
import time
from typing import Any

# Passes the secret of the job: all users of a host can read a process's arguments.
TOKEN_VARIABLE = "RESNET_WATCHDOG_TOKEN"
CONNECT_SECONDS = 5.0
Message = dict[str, Any]

_GREETING = b"hello\n"
_MAX_MESSAGE_BYTES = 1 << 20


class Channel:
    """A connection over a socket or a pipe."""

    def __init__(self, file: int | socket.socket) -> None:
        self._file = file
        self._descriptor = file if isinstance(file, int) else file.fileno()
        self._received = b""
        self.rank: int | None = None  # The rank of the watchdog at the other end.

    def fileno(self) -> int:
        """Returns the file descriptor."""
        return self._descriptor

    def receive(self) -> list[Message] | None:
        """Returns the messages that have arrived, or None if the connection has ended.

        Data that are no messages, such as those of a port scan, count as its end.
        """
        try:
            data = os.read(self._descriptor, 1 << 16)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            return None
        are_messages = all(isinstance(message, dict) for message in messages)
        is_short = len(self._received) < _MAX_MESSAGE_BYTES
        return messages if are_messages and is_short else None

    def send(self, message: Message) -> None:
        """Sends a message; does nothing if the other end is closed, or doesn't read."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Closes the connection."""
        if isinstance(self._file, socket.socket):
            self._file.close()


def accept(listener: socket.socket) -> Channel | None:
    """Returns a new connection of the monitor; None if it is lost already."""
    with contextlib.suppress(OSError):  # Closed again, or too many open files.
        connection, _ = listener.accept()
        connection.setblocking(False)
        return Channel(connection)
    return None


def greet(channel: Channel) -> None:
    """Answers a watchdog of this job."""
    with contextlib.suppress(OSError):
        os.write(channel.fileno(), _GREETING)


class Attempts:
    """The attempts of a watchdog to connect to the monitor on `host`."""

    def __init__(self, monitor: Message, token: str, rank: int) -> None:
        """Makes no attempt yet; `monitor` has the `host`, `addresses` and `port`."""
        self.host: str = monitor["host"]
        self._monitor, self._token, self._rank = monitor, token, rank
        self._num_failed = 0

    def connect(self) -> Channel | None:
        """Returns a connection at the first address that answers; None if none does."""
        for address in self._monitor["addresses"]:
            with contextlib.suppress(OSError):
                endpoint = address, self._monitor["port"]
                connection = socket.create_connection(endpoint, CONNECT_SECONDS)
                channel = Channel(connection)
                channel.send({"token": self._token, "rank": self._rank})
                if connection.recv(len(_GREETING)) == _GREETING:
                    connection.setblocking(False)
                    return channel
                connection.close()
        self._num_failed += 1
        return None

    def warning(self, name: str) -> str | None:
        """Returns a warning after the second failure, None after others.

        After the first one the job may just be ending. `name` has the rank and host.
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
    """Sends a message to the monitor, and waits for a while until that ends the job."""
    channel.send(message)
    deadline = time.monotonic() + CONNECT_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        select.select([channel], [], [], left)
        messages = channel.receive()
        if messages is None or any("kill" in answer for answer in messages):
            return
