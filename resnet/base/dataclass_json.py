"""Makes dataclasses from JSON: checks each field."""

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

from resnet.base.errors import UserError

_T = TypeVar("_T")
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "a bool"}


def from_json(
    kind: type[_T], values: Any, where: str, also_known: tuple[str, ...] = ()
) -> _T:
    """Returns the instance of a dataclass that a JSON object describes.

    Args:
        kind: The dataclass; its fields are numbers, text, bools, None, tuples of these,
            and other dataclasses.
        values: The JSON object; an instance of the dataclass is returned as it is.
        where: The description of the object for the sentence of an error.
        also_known: The names of further fields that the file may have, for the sentence
            of an error.

    Raises:
        UserError: If a field is unknown or missing, or its value has another type; text
            is never converted to a number.
    """
    if isinstance(values, kind):
        return values
    if not isinstance(values, dict):
        raise UserError(f"{where} must be an object; got {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(fields)):
        known = ", ".join([*fields, *also_known])
        raise UserError(f"unknown field {unknown[0]!r} of {where}; known are {known}")
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise UserError(f"{name!r} of {where} is missing")
    hints = typing.get_type_hints(kind)
    return kind(
        **{
            name: converted(hints[name], value, f"{name!r} of {where}")
            for name, value in values.items()
        }
    )


def converted(kind: Any, value: Any, where: str) -> Any:
    """Returns a JSON value converted to the type of a field.

    Args:
        kind: The type, one of those that `from_json` allows.
        value: The value.
        where: The description of the value for the sentence of an error.

    Raises:
        UserError: If the value has another type, or a number isn't finite.
    """
    is_any_number = False
    if isinstance(kind, types.UnionType):
        kinds = set(typing.get_args(kind))
        if value is None and types.NoneType in kinds:
            return None
        kinds.discard(types.NoneType)
        is_any_number = kinds == {int, float}
        kind = float if is_any_number else kinds.pop()
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list; got {value!r}")
        item = typing.get_args(kind)[0]
        return tuple(
            converted(item, element, f"number {number} of {where}")
            for number, element in enumerate(value, start=1)
        )
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type, kind), value, where)
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (
        isinstance(value, bool) and kind is not bool
    ):
        raise UserError(f"{where} must be {_WORDS[kind]}; got {value!r}")
    if kind is float and not _is_finite(value):
        raise UserError(f"{where} must be a number; got {shortened(repr(value))}")
    return value if is_any_number else kind(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # A whole number beyond all floats.
        return False


def shortened(text: str, max_length: int = 40) -> str:
    """Returns a text with at most so many characters, which end with dots if cut."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."
