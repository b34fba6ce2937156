"""Standard error of a watchdog, whose reader may have stopped reading."""

import contextlib
import os
import sys
import threading

_SECONDS = 0.5  # The longest time that printing takes if the output is read.


class Output:
    """Prints without waiting for a reader.

    If nothing reads the output of mpirun, as after Ctrl-S in its terminal, printing
    blocks. The watchdog must kill its rank nevertheless.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def print(self, text: str) -> None:
        """Prints a text; continues in the background if the output is not read."""
        thread = threading.Thread(target=_write, args=(text,), daemon=True)
        thread.start()
        thread.join(_SECONDS)
        self._threads.append(thread)

    def finish(self) -> None:
        """Waits until all texts are printed, or the output is closed."""
        for thread in self._threads:
            thread.join()


def _write(text: str) -> None:
    data = f"{text}\n".encode()
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(sys.stderr.fileno(), data) :]
