"""Prints the most probable classes of images as a table or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from resnet.base.errors import print_to_pipe

_WIDTH = 80  # Width of the table, in characters.
_MAX_CLASS = 20  # The width of a column, as the next one.
_MAX_FILE = 28  # With descriptions, which have the rest; otherwise paths have it.
_GAP = "  "
_PROBABILITY = "probability"


@dataclass(frozen=True)
class Predicted:
    """A class and the probability that an image shows it.

    Attributes:
        name: The name of the class.
        index: The label of the class, counted from 0.
        probability: The probability, from 0 to 1.
        description: The description of the class; empty if there is none.
    """

    name: str
    index: int
    probability: float
    description: str = ""


class Table:
    """A table of at most 80 columns, with a line for each class of each image."""

    def __init__(
        self, paths: Sequence[str], names: Sequence[str], has_descriptions: bool
    ) -> None:
        """Chooses the widths of the columns; nothing is printed yet.

        Args:
            paths: The paths of all images.
            names: The names of all classes.
            has_descriptions: Whether the classes have descriptions.
        """
        rest = _WIDTH - len(_PROBABILITY) - len(_GAP)
        self._name = _width("class", names, _MAX_CLASS)
        rest -= self._name + len(_GAP)
        self._file = _width("image", paths, _MAX_FILE if has_descriptions else rest)
        rest -= self._file + len(_GAP)
        self._description = rest if has_descriptions else 0
        self._has_head = False

    def add(self, path: str, predicted: Sequence[Predicted]) -> None:
        """Prints the classes of an image, the most probable one first."""
        if not self._has_head:
            self._print("image", "class", "description", _PROBABILITY)
            self._has_head = True
        for number, one in enumerate(predicted):
            self._print(
                "" if number else _end_of(_printable(path), self._file),
                _start_of(_printable(one.name), self._name),
                _start_of(_printable(one.description), self._description),
                f"{100 * one.probability:.2f} %",
            )

    def _print(self, file: str, name: str, description: str, last: str) -> None:
        columns = [file.ljust(self._file), name.ljust(self._name)]
        if self._description:
            columns.append(description.ljust(self._description))
        print_to_pipe(_GAP.join([*columns, last.rjust(len(_PROBABILITY))]))


class JsonLines:
    """One JSON object for each image, in a line of its own."""

    def add(self, path: str, predicted: Sequence[Predicted]) -> None:
        """Prints the classes of an image, the most probable one first."""
        predictions = [
            {
                "class": one.name,
                **({"description": one.description} if one.description else {}),
                "index": one.index,
                "probability": one.probability,
            }
            for one in predicted
        ]
        print_to_pipe(json.dumps({"image": path, "predictions": predictions}))


def _width(title: str, values: Sequence[str], largest: int) -> int:
    return min(max(len(_printable(value)) for value in (title, *values)), largest)


def _printable(text: str) -> str:
    """Returns a text, quoted if it has characters that a terminal can't show."""
    return text if text.isprintable() else ascii(text)


def _start_of(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 3, 0)]}..."[:width]


def _end_of(text: str, width: int) -> str:
    """Returns the end of a path, which tells more than its start."""
    return text if len(text) <= width else f"...{text[len(text) - width + 3 :]}"
