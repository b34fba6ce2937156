"""Reads JSON: the one reader of every JSON file and text that the programs take.

    contents = json_file.read(path, dict, "a benchmark's results")
    config = json_file.read(path, Config, "the settings of a run", "Restore it.")

What isn't JSON of the expected form is a `UserError`, a sentence that names the file,
what it must hold, and the part that is wrong. The fields of a dataclass may be int,
float, str, bool, None, Any, other dataclasses, unions of one of these with None, and
tuples and dicts of them.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from resnet.base import names, regular_file
from resnet.base.errors import UserError
from resnet.base.text import quoted

_T = TypeVar("_T")
_MOST_BYTES = 2**30
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class MissingFile(UserError):
    """There is no file at the path."""


def read(
    path: str | os.PathLike[str], kind: type[_T], what: str, advice: str = ""
) -> _T:
    """Returns the object in a file, as the instance of a dataclass.

    `kind` may be `dict`, whose values aren't checked. `what` the file must hold, and
    the sentences of `advice`, are for the `UserError` about another file or a
    `MissingFile`.
    """
    source = str(path)
    with naming(source, what, advice):
        try:
            data = regular_file.read_bytes(path, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFile("there is no such file") from error
        except OSError as error:
            raise UserError(f"it can't be read: {error.strerror}") from error
    return parse(data, kind, source, what, advice)


def parse(
    text: str | bytes, kind: type[_T], source: str, what: str, advice: str = ""
) -> _T:
    """Returns the object in a text or UTF-8 of a source, as `read` does for a file."""
    with naming(source, what, advice):
        values = _loaded(text)
        return typing.cast(_T, values) if kind is dict else instance(kind, values)


@contextlib.contextmanager
def naming(source: str, what: str, advice: str = "") -> Iterator[None]:
    """Makes a `UserError` of the block begin with the source, as those of `parse`."""
    try:
        yield
    except UserError as error:
        problem = str(error).removesuffix(".")
        sentence = f"{source} must hold {what}; {problem}. {advice}".rstrip()
        raise type(error)(sentence) from error


def parse_lines(
    lines: Iterable[str | bytes], is_wanted: Callable[[dict[str, Any]], bool]
) -> tuple[list[dict[str, Any]], int]:
    """Returns the objects in a log of one a line, and the number of bad lines.

    One for which `is_wanted` raises a LookupError or TypeError is bad, too.
    """
    objects, num_bad = [], 0
    for line in lines:
        try:
            values = json.loads(line)
            is_good = isinstance(values, dict) and is_wanted(values)
        except (ValueError, LookupError, TypeError, RecursionError):
            is_good = False
        num_bad += not is_good
        if is_good:
            objects.append(values)
    return objects, num_bad


def instance(
    kind: type[_T], values: Any, where: str = "", also_known: tuple[str, ...] = ()
) -> _T:
    """Returns the instance of a dataclass that a parsed JSON object describes.

    An instance is returned as it is. An error says `where` the object is, unless it is
    a whole file, and which further fields are `also_known`.
    """
    if isinstance(values, kind):
        return values
    _require_object(values, where or "it")
    fields, hints = _fields_of(typing.cast(Any, kind))
    if unknown := sorted(set(values) - set(fields)):
        known = [*fields, *also_known]
        question = names.did_you_mean(names.nearest(unknown[0], known))
        raise UserError(
            f"it has an unknown field {_of(unknown[0], where)}; known are"
            f" {', '.join(known)}.{question}"
        )
    for name, is_needed in fields.items():
        if is_needed and name not in values:
            raise UserError(f"{_of(name, where)} is missing")
    return kind(
        **{
            name: converted(hints[name], value, _of(name, where))
            for name, value in values.items()
        }
    )


def converted(kind: Any, value: Any, where: str) -> Any:
    """Returns a parsed JSON value, converted to one of the types of fields."""
    if kind is Any:
        return value
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
            raise UserError(f"{where} must be a list; got {_quoted(value)}")
        item = typing.get_args(kind)[0]
        return tuple(
            converted(item, element, f"number {number} of {where}")
            for number, element in enumerate(value, start=1)
        )
    if typing.get_origin(kind) is dict:
        _require_object(value, where)
        item = typing.get_args(kind)[1]
        return {
            name: converted(item, element, _of(name, where))
            for name, element in value.items()
        }
    if dataclasses.is_dataclass(kind):
        return instance(typing.cast(type, kind), value, where)
    accepted = (int, float) if kind is float else kind
    is_other_bool = isinstance(value, bool) and kind is not bool
    if (
        not isinstance(value, accepted)
        or is_other_bool
        or (kind is float and not _is_finite(value))
    ):
        raise UserError(f"{where} must be {_WORDS[kind]}; got {_quoted(value)}")
    if kind is int and int(value).bit_length() > 64:
        raise UserError(f"{where} must have at most 64 bits; got {_quoted(value)}")
    return value if is_any_number else kind(value)


@functools.cache
def _fields_of(kind: Any) -> tuple[dict[str, bool], dict[str, Any]]:
    """Returns whether each field of a dataclass is needed, and the fields' types."""
    needed = {
        field.name: field.default is field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(kind)
    }
    return needed, typing.get_type_hints(kind)


def _loaded(text: str | bytes) -> dict[str, Any]:
    try:
        values = json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
        )
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):  # Itself a ValueError.
            raise
        raise UserError(f"it isn't JSON ({error})") from error
    _require_object(values, "it")
    return typing.cast(dict[str, Any], values)


def _require_object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be an object, {{...}}; got {_quoted(value)}")


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        given = [name for name, _ in pairs]
        twice = next(name for name in given if given.count(name) > 1)
        raise UserError(f"each field must be given once; {twice!r} is given twice")
    return values


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # A whole number beyond all floats.
        return False


def _quoted(value: Any) -> str:
    try:
        return quoted(value)
    except RecursionError:
        return "something that is nested too deeply"


def _of(name: str, where: str) -> str:
    return f"{name!r} of {where}" if where else repr(name)
