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
    """A class and the probability, from 0 to 1, that an image shows it."""

    name: str
    index: int  # The label, counted from 0.
    probability: float
    description: str = ""


class Table:
    """A table of at most 80 columns, with a line for each class of each image."""

    def __init__(
        self, paths: Sequence[str], names: Sequence[str], has_descriptions: bool
    ) -> None:
        """Chooses the widths of the columns by all paths and class names."""
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
        for number, prediction in enumerate(predicted):
            self._print(
                "" if number else _end_of(_printable(path), self._file),
                _start_of(_printable(prediction.name), self._name),
                _start_of(_printable(prediction.description), self._description),
                f"{100 * prediction.probability:.2f} %",
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
        predictions = []
        for prediction in predicted:
            described = {"class": prediction.name}
            if prediction.description:
                described["description"] = prediction.description
            numbers = {"index": prediction.index, "probability": prediction.probability}
            predictions.append({**described, **numbers})
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
