"""Declarations of settings: each setting is one field of a dataclass, with its bounds.

Bounds checks, command-line flags, recipe files, overrides and `--explain` read the
declaration, so a new setting needs one such field and the code that uses it.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resnet.base import intervals
from resnet.base.errors import UserError

LARGEST_COUNT = 2**31
BELOW_ONE = math.nextafter(1, 0)
AT_LEAST_ZERO = (0, math.inf)
ABOVE_ZERO = (1e-30, math.inf)
FRACTION = (0, BELOW_ONE)
COUNT = (1, LARGEST_COUNT)
COUNT_OR_ZERO = (0, LARGEST_COUNT)

_KEY = "declaration"


@dataclass(frozen=True)
class Declaration:
    """The declaration of a setting, apart from its name, its type and its default.

    Attributes:
        help: One sentence for the reference of flags; `{names}` in it stands for the
            allowed names.
        topic: The title under which --help lists the flag; empty for the `TOPIC` of the
            dataclass.
        common: Whether --help lists the flag, and not only --helpfull.
        hidden: Whether the flag is accepted only, and listed nowhere.
        unset: What an empty default means, for the reference of flags.
        bounds: The lowest and the highest allowed number; None for no bounds.
        names: The allowed names; empty for any.
        synonyms: Other names that flags accept, each with the allowed name it means.
        interval_units: The units of an interval, as `intervals.parse` takes them; empty
            for other settings.
        flag: The name of the flag if it isn't that of the field; None for no flag.
        short_flag: The letter of the flag's short form; empty for none.
        aliases: Names of the flag that are accepted and listed nowhere, each with the
            letter of its short form or "".
        decides_the_result: Whether a run can't be resumed with another value.
        decisive_part: Returns the part of the value that decides the result.
    """

    help: str = ""
    topic: str = ""
    common: bool = False
    hidden: bool = False
    unset: str = ""
    bounds: tuple[float, float] | None = None
    names: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, str], ...] = ()
    interval_units: str = ""
    flag: str | None = ""
    short_flag: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    decides_the_result: bool = True
    decisive_part: Callable[[Any], Any] = lambda value: value


def setting(default: Any = dataclasses.MISSING, help: str = "", **known: Any) -> Any:  # noqa: A002
    """Returns a field of a dataclass that declares a setting.

    A setting without a default must be given. `known` are the other attributes of
    `Declaration`.
    """
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
    if requirement := violated_requirement(declaration, value):
        return [f"{flag} must be {requirement}; got {value}."]
    if declaration.interval_units and value:
        try:
            intervals.parse(value, flag, declaration.interval_units)
        except UserError as error:
            return [str(error)]
    return []


def problems_of(values: Any, described: str) -> list[str]:
    """Returns a sentence about each field of a dataclass whose value isn't allowed.

    `described` is the instance in the sentence, such as "phase 'train'".
    """
    kind: Any = type(values)
    declared = declarations(kind)
    return [
        f"{name} of {described} must be {requirement}; got {getattr(values, name)}."
        for name, declaration in declared.items()
        if (requirement := violated_requirement(declaration, getattr(values, name)))
    ]


def violated_requirement(declaration: Declaration, value: Any) -> str:
    """Returns the requirement that a value violates, in words; empty if it is allowed.

    A value of None is always allowed.
    """
    if value is None:
        return ""
    if declaration.bounds:
        return _outside(declaration.bounds, value)
    if declaration.names and value not in declaration.names:
        return f"one of {', '.join(declaration.names)}"
    return ""


def _outside(bounds: tuple[float, float], value: float) -> str:
    low, high = bounds
    if low <= value <= high and value < math.inf:  # False for NaN.
        return ""
    if high == math.inf and value == math.inf:
        return f"at least {low:g}, and finite"
    if high in (math.inf, LARGEST_COUNT) and not value >= high:
        return f"at least {low:g}"
    return f"in [{low:g}, 1)" if high == BELOW_ONE else f"in [{low:g}, {high:g}]"
