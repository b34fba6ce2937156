"""The rows of a study: the settings of compression that it compares."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from resnet.base import bounds, json_file, settings
from resnet.base.errors import UserError
from resnet.config import rules
from resnet.config.compression import CompressionSettings

DENSE = CompressionSettings()
_FEEDBACK = {"without": (False,), "with": (True,), "both": (False, True)}
FEEDBACK = tuple(_FEEDBACK)
# The settings that a row states apart from the parameters of its method.
_NOT_PARAMETERS = ("compress", "method", "error_feedback")


def product(
    methods: Iterable[str], ways: Sequence[str], feedback: str
) -> tuple[list[CompressionSettings], list[str]]:
    """Returns the rows of all combinations, after one without compression.

    Args:
        methods: Methods with the parameters that aren't the default ones, such as
            "topk:ratio=0.01:kept_values=bfloat16".
        ways: Values of `CompressionSettings.compress`.
        feedback: One of `FEEDBACK`.

    Returns:
        The rows, and the names of combinations that are left out since they can't work.

    Raises:
        UserError: If a method, a parameter or a way doesn't exist.
    """
    rows, left_out = [DENSE], []
    for text, way, has_feedback in itertools.product(
        methods, ways, _FEEDBACK[feedback]
    ):
        values = {"compress": way, "error_feedback": has_feedback, **_parsed(text)}
        row = _checked(values, f"--methods={text}")
        if feedback == "with" and rules.broken(row):
            row = dataclasses.replace(row, error_feedback=False)
        if rules.broken(row):
            left_out.append(name(row))
        elif row not in rows:
            rows.append(row)
    return rows, left_out


def read(path: Path) -> list[CompressionSettings]:
    """Returns the rows in a JSON file, a list of objects with settings of compression.

    Raises:
        UserError: If the file can't be read, or a row can't work.
    """
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"expected a JSON file of rows; {path}: {error}.") from error
    if not isinstance(values, list) or not values:
        raise UserError(f"{path} must have a list of rows, such as [{{}}].")
    rows = []
    for number, value in enumerate(values, 1):
        row = _checked(value, f"row {number} of {path}")
        if problems := rules.broken(row):
            raise UserError(f"row {number} of {path}: {problems[0]}")
        rows.append(row)
    return rows


def from_values(values: Any) -> CompressionSettings:
    """Returns the row that `changed` has described."""
    return _checked(values, "a row of study.json")


def changed(row: CompressionSettings) -> dict[str, Any]:
    """Returns the settings of a row that aren't the defaults, by their names."""
    values = dataclasses.asdict(row)
    return {key: values[key] for key in values if values[key] != getattr(DENSE, key)}


def flags(row: CompressionSettings) -> list[str]:
    """Returns the flags of the training program for a row."""
    declared = settings.declarations(CompressionSettings)
    return [
        f"--{settings.flag_name(key, declared[key])}={str(value).lower()}"
        if isinstance(value, bool)
        else f"--{settings.flag_name(key, declared[key])}={value}"
        for key, value in changed(row).items()
    ]


def method(row: CompressionSettings) -> str:
    """Returns the method of a row with its parameters, such as "topk, ratio=0.01"."""
    if row.compress == "none":
        return "dense"
    return ", ".join([row.method, *_parameters(row)])


def name(row: CompressionSettings) -> str:
    """Returns a name of a row for folders, such as "topk-ratio=0.01-layerwise"."""
    if row.compress == "none":
        return "dense"
    parts = [row.method, *_parameters(row), row.compress]
    return "-".join([*parts, *["feedback"] * row.error_feedback])


def _parameters(row: CompressionSettings) -> list[str]:
    return [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in changed(row).items()
        if key not in _NOT_PARAMETERS
    ]


def _parsed(text: str) -> dict[str, Any]:
    """Returns the method and the parameters in a text."""
    method_name, *parameters = text.split(":")
    values: dict[str, Any] = {"method": method_name}
    known = settings.declarations(CompressionSettings)
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key not in known or key in _NOT_PARAMETERS:
            raise UserError(f"--methods={text}: there is no parameter {key!r}.")
        kind = settings.value_type(CompressionSettings, key)
        try:
            values[key] = kind(value)
        except ValueError as error:
            raise UserError(f"--methods={text}: {key} can't be {value!r}.") from error
    return values


def _checked(values: Any, where: str) -> CompressionSettings:
    row = json_file.instance(CompressionSettings, values, where)
    if problems := bounds.problems_of(row, where):
        raise UserError(problems[0])
    return row
