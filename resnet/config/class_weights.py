"""The weights of the classes in the loss, by `--class_weights`. Needs no TensorFlow."""

import csv
import io
import math
from collections.abc import Iterator, Sequence

import numpy as np

from resnet.base import json_file, regular_file
from resnet.base.errors import UserError

# The power of the number of examples of a class that its weight is divided by.
POWERS = {"balanced": 1.0, "root": 0.5}
_MOST_BYTES = 2**24
_FORM = (
    "a weight for each class by its name: a JSON object, or the columns class and"
    " weight as CSV"
)
_ADVICE = f"--class_weights is none, {', '.join(POWERS)} or such a file."


def resolve(
    class_weights: str, class_names: Sequence[str], label_counts: Sequence[int]
) -> tuple[float, ...]:
    """Returns the weight of each class, in the order of the labels; none without any.

    With c the number of training examples of a class, "balanced" is proportional to
    1/c and "root" to 1/sqrt(c). Their mean over the training examples is 1, so that the
    loss, and with it the learning rate, keeps its scale. A class without examples,
    which counts only in label smoothing, has the weight 1. Weights of a file are taken
    as they are. Raises UserError for a file that isn't whole.

    Source of "balanced": scikit-learn, compute_class_weight, after King and Zeng 2001,
    "Logistic Regression in Rare Events Data".
    """
    if class_weights == "none":
        return ()
    if class_weights not in POWERS:
        return _read(class_weights, class_names)
    counts = np.array(label_counts, np.float64)
    weights = np.maximum(counts, 1) ** -POWERS[class_weights]
    weights *= counts.sum() / (counts * weights).sum()
    return tuple(np.where(counts > 0, weights, 1.0).tolist())


def describe(weights: Sequence[float], class_names: Sequence[str]) -> str:
    """Returns the smallest and the largest weight, with their classes."""
    ends = [weights.index(end) for end in (min(weights), max(weights))]
    texts = [f"{weights[label]:.4g} ({class_names[label]})" for label in ends]
    return f"from {texts[0]} to {texts[1]}"


def _read(path: str, class_names: Sequence[str]) -> tuple[float, ...]:
    if path.endswith(".json"):
        contents = json_file.read(path, dict, _FORM, _ADVICE)
        with json_file.naming(path, _FORM, _ADVICE):
            return _of_classes(list(contents.items()), class_names)
    with json_file.naming(path, _FORM, _ADVICE):
        try:
            text = regular_file.read_bytes(path, _MOST_BYTES).decode("utf-8-sig")
            return _of_classes(list(_rows(text)), class_names)
        except OSError as error:
            raise UserError(f"it can't be read: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"it is no CSV in UTF-8 ({error})") from error


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """Yields names and weights, without a first line that names the columns."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    for row in filter(None, reader):
        if len(row) != 2:
            raise UserError(
                f"line {reader.line_num} has {len(row)} columns instead of two"
            )
        if row != ["class", "weight"]:
            yield row[0], row[1]


def _of_classes(
    rows: Sequence[tuple[str, object]], class_names: Sequence[str]
) -> tuple[float, ...]:
    weights: dict[str, float] = {}
    known = set(class_names)
    for name, value in rows:
        if name in weights or name not in known:
            problem = "stands twice" if name in weights else "is no class of the data"
            raise UserError(f"{name!r} {problem}")
        try:
            weights[name] = float(value) if isinstance(value, str | int | float) else -1
        except (ValueError, OverflowError):
            weights[name] = math.nan
        if not 0 <= weights[name] < math.inf:
            raise UserError(
                f"the weight of {name!r} must be a number of at least 0; got {value!r}"
            )
    if missing := [name for name in class_names if name not in weights]:
        raise UserError(f"the weight of {missing[0]!r} is missing")
    if not any(weights.values()):
        raise UserError("all weights are 0")
    return tuple(weights[name] for name in class_names)
