"""What a guard hears and says: one JSON object a line, over a socket or a pipe."""

import contextlib
import json
import os
import socket
from typing import Any

# Where a guard is told the secret of its job: arguments are for all users to see.
TOKEN_VARIABLE = "RESNET_GUARD_TOKEN"
Message = dict[str, Any]

_LONGEST = 1 << 20  # Bytes of a message.


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
        """Returns the messages that have come; None at the end.

        What is none of ours, such as a port scan's, is the end as well.
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
        is_ours = all(isinstance(message, dict) for message in messages)
        return messages if is_ours and len(self._received) < _LONGEST else None

    def send(self, message: Message) -> None:
        """Sends a message if the other end is there."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Closes the connection."""
        if isinstance(self._file, socket.socket):
            self._file.close()
