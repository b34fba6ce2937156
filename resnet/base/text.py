"""Lists, sizes, times and lines as people read them in messages."""

import re
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80  # The width of most terminals.
_POWERS_OF_1000 = {"B": 0, "bytes": 0, "kB": 1, "MB": 2, "GB": 3, "TB": 4}
_MINUTE, _HOUR = 60, 3600


def hanging(first: str, text: str) -> list[str]:
    """Returns the lines of a text behind a label, by whose width all are indented."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)
    )


def listed(title: str, sentences: Iterable[str]) -> list[str]:
    """Returns an empty line, a title and a list of sentences; nothing without any."""
    items = [line for sentence in sentences for line in hanging("- ", sentence)]
    return ["", f"{title}:", *items] if items else []


def first_of(names: Iterable[str], most: int = 4, separator: str = ", ") -> str:
    """Returns at most so many names, and the number of the others."""
    listed = list(names)
    text = separator.join(listed[:most])
    others = len(listed) - most
    return f"{text} and {others} more" if others > 0 else text


def shortened(text: str, max_length: int = 40) -> str:
    """Returns a text with at most so many characters, which end with dots if cut."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def quoted(value: object, max_length: int = 40) -> str:
    """Returns the representation of a value, shortened, with its closing quote."""
    text = repr(value)
    return text if len(text) <= max_length else f"{text[: max_length - 4]}...{text[-1]}"


def counted(number: float, noun: str, form: str = ",") -> str:
    """Returns a number with its noun, such as "1 process" or "1,024 ranks"."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "tch")) else "s"
    return f"{number:{form}} {noun}{ending}"


def without_graph_names(message: str) -> str:
    """Returns an error message of TensorFlow without the names of nodes and ops."""
    return re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:\w+\]", "", message)


def size(
    num_bytes: float,
    form: str = ",.1f",
    units: Sequence[str] = ("bytes", "kB", "MB", "GB", "TB"),
) -> str:
    """Returns a size in the first unit, of ascending ones, where it is below 1000."""
    for unit in units:
        value = num_bytes / 1000 ** _POWERS_OF_1000[unit]
        if value < 1000:
            break
    return f"{value:{form if _POWERS_OF_1000[unit] else 'g'}} {unit}"


def clock(seconds: float) -> str:
    """Returns hours, minutes and seconds, such as "1:52:10" or "0:09"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def duration(seconds: float) -> str:
    """Returns a length of time that is known to the minute, such as "2 h 5 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f"{hours:,} h {minutes} min"


def estimated(seconds: float) -> str:
    """Returns a length of time to three digits in one unit, such as "50 min"."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.3g} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.3g} min"
    return f"{seconds / _HOUR:,.1f} h"
