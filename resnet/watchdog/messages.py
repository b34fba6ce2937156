"""The messages of watchdogs: one JSON object per line, over a socket or a pipe."""

import contextlib
import json
import os
import socket
from typing import Any

# Passes the secret of the job: all users of a host can read a process's arguments.
TOKEN_VARIABLE = "RESNET_WATCHDOG_TOKEN"
Message = dict[str, Any]

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
        return (
            messages
            if are_messages and len(self._received) < _MAX_MESSAGE_BYTES
            else None
        )

    def send(self, message: Message) -> None:
        """Sends a message; does nothing if the other end is closed."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Closes the connection."""
        if isinstance(self._file, socket.socket):
            self._file.close()
