"""Declarations of settings: each setting is one field of a dataclass, with its bounds.

Checks, flags, recipe files, overrides and --explain read these declarations.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resnet.base import intervals, names
from resnet.base.errors import UserError

LARGEST_COUNT = 2**31
BELOW_ONE = math.nextafter(1, 0)
AT_LEAST_ZERO = (0, math.inf)
ABOVE_ZERO = (1e-30, math.inf)
_TINY = 1e-8  # Lower bounds below it stand for "above 0".
FRACTION = (0, BELOW_ONE)
COUNT = (1, LARGEST_COUNT)
COUNT_OR_ZERO = (0, LARGEST_COUNT)

_KEY = "declaration"


@dataclass(frozen=True)
class Declaration:
    """The declaration of a setting, apart from its name, its type and its default."""

    help: str = ""  # Of the reference of flags; `{names}` stands for `names`.
    topic: str = ""  # Above the flag in --help; empty for the class's `TOPIC`.
    common: bool = False  # Whether --help lists the flag, and not only --helpfull.
    hidden: bool = False  # Whether the flag is accepted only, and listed nowhere.
    unset: str = ""  # What an empty default means, for the reference of flags.
    bounds: tuple[float, float] | None = None  # The lowest and highest number.
    names: tuple[str, ...] = ()  # The allowed names; empty for any.
    # Other values, with the names they mean.
    synonyms: tuple[tuple[str, str], ...] = ()
    interval_units: str = ""  # Of an interval, as `intervals.parse` takes them.
    flag: str | None = ""  # If it isn't the field's name; None for no flag.
    short_flag: str = ""  # The letter of the flag's short form; empty for none.
    aliases: tuple[tuple[str, str], ...] = ()  # Unlisted flags, and a letter or "".
    elsewhere: str = ""  # Names of the flag in other programs, which an error explains.
    decides_the_result: bool = True  # A run can't be resumed with another.
    decisive_part: Callable[[Any], Any] = lambda value: value  # Of the value.


def setting(default: Any = dataclasses.MISSING, help: str = "", **known: Any) -> Any:  # noqa: A002
    """Returns a field that declares a setting, with attributes of `Declaration`."""
    return dataclasses.field(
        default=default, metadata={_KEY: Declaration(help, **known)}
    )


# Of a recipe and its file, without a flag.
recipe_setting = functools.partial(setting, flag=None)
# Of a run, which may be resumed with another value.
changeable_setting = functools.partial(setting, decides_the_result=False)


@functools.cache
def declarations(*kinds: type) -> dict[str, Declaration]:
    """Returns the declarations in dataclasses and their bases, by the fields' names.

    Where several declare a name, the first one that has a flag counts.
    """
    declared: dict[str, Declaration] = {}
    bases = [base for kind in kinds for base in reversed(kind.__mro__)]
    for base in filter(dataclasses.is_dataclass, bases):
        for field in dataclasses.fields(base):
            declaration = field.metadata.get(_KEY)
            known = declared.get(field.name)
            if declaration and (
                known is None or (known.flag is None and declaration.flag is not None)
            ):
                topic = declaration.topic or base.__dict__.get("TOPIC", "")
                declared[field.name] = dataclasses.replace(declaration, topic=topic)
    return declared


def flag_name(name: str, declaration: Declaration) -> str:
    """Returns the name of a setting's flag, which is usually the setting's name."""
    return declaration.flag or name


def value_type(kind: type, name: str) -> type:
    """Returns the type of the values of a field, apart from None."""
    hint = typing.get_type_hints(kind)[name]
    if isinstance(hint, types.UnionType):
        (hint,) = set(typing.get_args(hint)) - {types.NoneType}
    return typing.cast(type, hint)


def validate_overrides(overrides: Mapping[str, Any], *kinds: type) -> list[str]:
    """Returns a sentence, naming the flag, for each override that isn't allowed."""
    declared = declarations(*kinds)
    return [
        problem
        for name, value in overrides.items()
        if name in declared
        for problem in problems_of_value(
            value, f"--{flag_name(name, declared[name])}", declared[name]
        )
    ]


def problems_of_value(value: Any, flag: str, declaration: Declaration) -> list[str]:
    """Returns a sentence about the value of a flag, such as "--steps", if wrong."""
    if problem := _problem(flag, value, declaration):
        return [problem]
    if declaration.interval_units and value:
        try:
            intervals.parse(value, flag, declaration.interval_units)
        except UserError as error:
            return [str(error)]
    return []


def problems_of(values: Any, described: str) -> list[str]:
    """Returns a sentence about each value of a dataclass that isn't allowed."""
    kind: Any = type(values)
    declared = declarations(kind)
    problems = (
        _problem(f"{name} of {described}", getattr(values, name), declaration)
        for name, declaration in declared.items()
    )
    return list(filter(None, problems))


def _problem(what: str, value: Any, declaration: Declaration) -> str:
    """Returns a sentence if a value isn't allowed; None is."""
    if value is None:
        return ""
    if declaration.names and value not in declaration.names:
        return names.unknown(what, value, declaration.names, "--helpfull")
    if declaration.bounds and (limits := _violated(declaration.bounds, value)):
        low, high = declaration.bounds
        is_percentage = low == 0 and high in (BELOW_ONE, 1) and 1 < value <= 100
        advice = f" For {value:g} %, give {value / 100:g}." if is_percentage else ""
        return f"{what} must be {limits}; got {value}.{advice}"
    return ""


def _violated(bounds: tuple[float, float], value: Any) -> str:
    """Returns the bounds, in words, that a value violates."""
    low, high = bounds
    if low <= value <= high and value < math.inf:  # False for NaN.
        return ""
    lowest = "above 0" if 0 < low < _TINY else f"at least {low:g}"
    if high == math.inf and value == math.inf:
        return f"{lowest}, and finite"
    if high in (math.inf, LARGEST_COUNT) and not value >= high:
        return lowest
    if 0 < low < _TINY:
        return f"{lowest}, at most {high:g}"
    return f"in [{low:g}, 1)" if high == BELOW_ONE else f"in [{low:g}, {high:g}]"
