"""Connections and messages of the watchdogs of a job: a JSON object per line.

A watchdog connects to that of rank 0, the monitor, over TCP. The monitor sends a random
challenge. The watchdog answers with the HMAC of it by the secret of the job, and its
rank, and the monitor with another HMAC, so that the secret itself is never sent. The
rank beside a watchdog writes to it through a pipe.
"""

import contextlib
import hmac
import json
import os
import resource
import select
import selectors
import socket
import time
from typing import Any

# Passes the secret of the job: all users of a host can read a process's arguments.
TOKEN_VARIABLE = "RESNET_WATCHDOG_TOKEN"
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 5.0
Message = dict[str, Any]

_CHALLENGE_BYTES, _PROOF_BYTES = 16, 64
_MAX_STRANGERS = 64  # Beside one unknown connection for each rank.
_SPARE_FILES = 16  # That unknown connections leave for all else that is opened.
_MAX_MESSAGE_BYTES = 1 << 17  # A traceback has 2^14 bytes, of up to 6 in JSON.


class Channel:
    """A connection over a socket or a pipe."""

    def __init__(self, file: int | socket.socket) -> None:
        self._file = file
        self._descriptor = file if isinstance(file, int) else file.fileno()
        self._received = b""
        self.rank: int | None = None  # The rank of the watchdog at the other end.
        self.is_closed = False

    def fileno(self) -> int:
        """Returns the file descriptor."""
        return self._descriptor

    def receive_lines(self, max_bytes: int) -> list[bytes] | None:
        """Returns the whole lines that have arrived, or None if the connection ended.

        A line of `max_bytes` or more, of which no more is read, counts as its end.
        """
        try:
            data = os.read(self._descriptor, max_bytes - len(self._received))
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        return lines if data and len(self._received) < max_bytes else None

    def receive(self) -> list[Message] | None:
        """Returns the messages that have arrived, or None if the connection has ended.

        Lines that are no messages are ignored: one may be torn if a buffer was full.
        """
        messages: list[Message] = []
        lines = self.receive_lines(_MAX_MESSAGE_BYTES)
        for line in lines or ():
            with contextlib.suppress(ValueError, RecursionError):
                messages.append(json.loads(line))
        return None if lines is None else messages

    def send(self, message: Message) -> None:
        """Sends a message; does nothing if the other end is closed, or doesn't read."""
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Writes some bytes like `send`."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, data)

    def close(self) -> None:
        """Closes the connection."""
        self.is_closed = True
        if isinstance(self._file, socket.socket):
            self._file.close()


def _proof(token: str, role: bytes, challenge: bytes) -> bytes:
    """Returns the answer to a challenge, which needs the secret of the job."""
    return hmac.new(token.encode(), role + challenge, "sha256").hexdigest().encode()


class Listener:
    """The monitor's port, and connections to it that are not known to be of the job.

    Of these, the newest `num_ranks` + 64 are kept for up to 5 s. Less than 256 bytes of
    each are read, and not parsed before the secret is known to be right.
    """

    def __init__(
        self, selector: selectors.BaseSelector, address: str, token: str, num_ranks: int
    ) -> None:
        """Listens on an address of this host, or on all if it is empty."""
        self._selector, self._token, self._num_ranks = selector, token, num_ranks
        self.socket = socket.create_server((address, 0), backlog=4096)
        self.socket.setblocking(False)
        self._max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
        # Challenges and deadlines, the oldest first.
        self.unknown: dict[Channel, tuple[bytes, float]] = {}
        self._selector.register(self.socket, selectors.EVENT_READ)

    def accept(self) -> None:
        """Accepts a connection, which may replace the oldest, and challenges it."""
        try:
            connection, _ = self.socket.accept()
        except OSError:  # It is lost already, or the host has too many open files.
            time.sleep(0.01)  # Or the caller would try again at once.
            return
        connection.setblocking(False)
        channel, challenge = Channel(connection), os.urandom(_CHALLENGE_BYTES)
        self.unknown[channel] = challenge, time.monotonic() + CONNECT_SECONDS
        self._selector.register(channel, selectors.EVENT_READ)
        channel.write(challenge)
        is_full = 0 < self._max_files <= channel.fileno()
        if is_full or len(self.unknown) > self._num_ranks + _MAX_STRANGERS:
            self._drop(next(iter(self.unknown)))

    def is_proved(self, channel: Channel) -> bool:
        """Returns whether an unknown connection is that of a watchdog of this job.

        Then it has its rank, and is no longer unknown. If it has failed, it is closed.
        """
        lines, (challenge, _) = channel.receive_lines(256), self.unknown[channel]
        if lines == []:
            return False
        line = lines[0] if lines else b""
        proof, rank = line[:_PROOF_BYTES], line[_PROOF_BYTES:]
        expected = _proof(self._token, b"watchdog", challenge)
        if hmac.compare_digest(proof, expected) and rank.isdigit():
            channel.rank = int(rank)
            channel.write(_proof(self._token, b"monitor", challenge))
            del self.unknown[channel]
        else:
            self._drop(channel)
        return channel.rank is not None

    def drop_late(self) -> None:
        """Closes the connections whose time is over."""
        while self.unknown:
            channel, (_, deadline) = next(iter(self.unknown.items()))
            if time.monotonic() < deadline:
                return
            self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        del self.unknown[channel]
        self._selector.unregister(channel)
        channel.close()


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
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                endpoint = address, self._monitor["port"]
                connection = socket.create_connection(endpoint, CONNECT_SECONDS)
                stack.callback(connection.close)
                challenge = connection.recv(_CHALLENGE_BYTES)
                proof = _proof(self._token, b"watchdog", challenge)
                connection.sendall(proof + b"%d\n" % self._rank)
                answer = connection.recv(_PROOF_BYTES)
                expected = _proof(self._token, b"monitor", challenge)
                if hmac.compare_digest(answer, expected):
                    stack.pop_all()
                    connection.setblocking(False)
                    return Channel(connection)
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
