"""What a watchdog prints: texts without a reader, and the warnings of all ranks."""

import contextlib
import threading

from resnet.base import output
from resnet.base.text import first_of

_SECONDS = 0.5  # The longest time that printing takes if the output is read.
_MAX_LINES = 8  # At a time; further ones are counted.


class Output:
    """Prints without waiting for a reader.

    If nothing reads the output of mpirun, as after Ctrl-S in its terminal, the watchdog
    must kill its rank nevertheless.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def print(self, text: str) -> None:
        """Prints a text; continues in the background if the output is not read."""
        data = f"{text}\n".encode(errors="backslashreplace")
        thread = threading.Thread(target=output.write, args=(2, data), daemon=True)
        with contextlib.suppress(RuntimeError):  # No more threads are allowed.
            thread.start()
            thread.join(_SECONDS)
            self._threads.append(thread)

    def print_lines(self, lines: list[str]) -> None:
        """Prints lines, if there are any."""
        if lines:
            self.print("\n".join(lines))

    def finish(self) -> None:
        """Waits until all texts are printed, or the output is closed."""
        for thread in self._threads:
            thread.join()


class RankWarnings:
    """Collects warnings until those of other ranks with the same text have arrived.

    What rank 0 has printed by itself is not printed again.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._due: list[str] = []  # Texts that have waited for a tick.
        self._waiting: dict[str, tuple[str, list[str]]] = {}  # Levels and ranks.

    def add(self, level: str, text: str, rank: str) -> None:
        """Adds a warning of a rank other than 0, such as "rank 1 on node7"."""
        if text not in self._known:
            _, ranks = self._waiting.setdefault(text, (level, []))
            if rank not in ranks:
                ranks.append(rank)

    def add_printed(self, text: str) -> None:
        """Adds a warning that rank 0 has printed."""
        self._known.add(text)
        self._waiting.pop(text, None)

    def tick(self) -> list[str]:
        """Returns the lines to print; to be called at regular intervals.

        A warning is due at the second call, since the same warning of another rank may
        be on its way at the first one.
        """
        lines = self._take([text for text in self._due if text in self._waiting])
        self._due = list(self._waiting)
        return lines

    def take_all(self) -> list[str]:
        """Returns the lines of all warnings that have not been printed yet."""
        return self._take(list(self._waiting))

    def _take(self, texts: list[str]) -> list[str]:
        taken = {text: self._waiting.pop(text) for text in texts}
        self._known.update(texts)
        lines = [
            f"{level}: {first_of(ranks)}: {text}"
            for text, (level, ranks) in taken.items()
        ]
        num_left = len(lines) - _MAX_LINES
        if num_left > 0:
            lines[_MAX_LINES:] = [f"warning: {num_left} more warnings of other ranks"]
        return lines
