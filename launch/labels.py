"""Names the rank and the host in front of each line that the ranks of a job print."""

import contextlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from launch.stop_requests import StopRequests

_CHUNK_BYTES = 1 << 16
# A line that begins so is of the supervisor, which may have started the ranks on other
# hosts since: Hydra's labels name them, those of other launchers don't.
_OF_SUPERVISOR = b"supervise: "
# A process that outlives its launcher has the pipe open. What it prints is of no use.
_DRAIN_SECONDS = 5.0
_NOBODY = b""  # The label of what launcher and supervisor print.


class Labels:
    """Turns the labels of a launcher into rank and host, and joins pieces of lines.

    Hydra labels each piece of a line that a rank writes, and pieces of several ranks
    may alternate in one line. So the text of each rank is kept until its line ends.
    """

    def __init__(self, pattern: str, hosts: Mapping[int, str]) -> None:
        """Prepares the translation of a stream.

        Args:
            pattern: A regular expression that matches a label, with the group `rank`
                and, if the launcher names it, `host`; empty if there is no launcher but
                a single rank.
            hosts: The host of each rank, for labels that don't name it.
        """
        self._pattern = re.compile(pattern.encode()) if pattern else None
        self._hosts = dict(hosts)
        self._texts: dict[bytes, bytes] = {}  # Unfinished lines, by their labels.
        self._unread = b""

    def translate(self, data: bytes) -> bytes:
        """Returns the lines that a piece of the stream completes, with their labels."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        return b"".join(map(self._translate_line, lines))

    def rest(self) -> bytes:
        """Returns the lines without an end, at the end of the stream."""
        out = self._translate_line(self._unread) if self._unread else b""
        out += b"".join(label + text + b"\n" for label, text in self._texts.items())
        self._texts, self._unread = {}, b""
        return out

    def _translate_line(self, line: bytes) -> bytes:
        """Returns a line of the stream with the beginning that its writer has left."""
        label, text = _NOBODY, line
        if self._pattern is None:
            label = self._label({"rank": b"0"})
        else:
            begin, text = 0, line
            for match in self._pattern.finditer(line):
                if piece := line[begin : match.start()]:
                    self._texts[label] = self._texts.get(label, b"") + piece
                label = self._label(match.groupdict())
                begin, text = match.end(), line[match.end() :]
        if line.startswith(_OF_SUPERVISOR):
            label, self._hosts = _NOBODY, {}
        return label + self._texts.pop(label, b"") + text + b"\n"

    def _label(self, groups: Mapping[str, bytes]) -> bytes:
        rank = int(groups["rank"])
        host = groups["host"].decode() if "host" in groups else self._hosts.get(rank)
        return f"[{rank} {host}] ".encode() if host else f"[{rank}] ".encode()


def run(
    words: Sequence[str],
    pattern: str,
    hosts: Mapping[int, str],
    requests: StopRequests,
) -> int:
    """Runs a job, and names rank and host in each line; returns its exit code.

    Raises:
        UserError: If there is no such program.
    """
    child = requests.start(words, is_captured=True)
    threads = [
        threading.Thread(
            target=_copy, args=(pipe, target, Labels(pattern, hosts)), daemon=True
        )
        for pipe, target in ((child.stdout, 1), (child.stderr, 2))
        if pipe
    ]
    for thread in threads:
        thread.start()
    code = requests.finish(child)
    for thread in threads:
        thread.join(_DRAIN_SECONDS)
    return code


def _copy(source: IO[bytes], target: int, labels: Labels) -> None:
    """Copies a stream with labels; goes on reading if nobody reads the copy."""
    with source:
        while data := os.read(source.fileno(), _CHUNK_BYTES):
            _write(target, labels.translate(data))
        _write(target, labels.rest())


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
