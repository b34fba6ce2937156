"""What a guard hears and says: one JSON object a line, over a socket or a pipe."""

import contextlib
import json
import os
import socket
from typing import Any

Message = dict[str, Any]


class Channel:
    """Messages, one JSON object a line, over a socket or a pipe."""

    def __init__(self, file: int | socket.socket) -> None:
        self._file = file
        self._descriptor = file if isinstance(file, int) else file.fileno()
        self._received = b""
        self.rank: int | None = None  # Of the guard at the other end.

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._descriptor

    def receive(self) -> list[Message] | None:
        """Returns the messages that have come; None at the end."""
        try:
            data = os.read(self._descriptor, 1 << 16)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, message: Message) -> None:
        """Sends a message if the other end is there."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Closes the connection."""
        if isinstance(self._file, socket.socket):
            self._file.close()
