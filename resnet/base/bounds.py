"""Checks the values of settings against their declarations."""

import math
from collections.abc import Mapping
from typing import Any

from resnet.base import intervals, settings
from resnet.base.errors import UserError
from resnet.base.settings import BELOW_ONE, LARGEST_COUNT, Declaration


def validate_overrides(overrides: Mapping[str, Any], *kinds: type) -> list[str]:
    """Returns a sentence, naming the flag, for each override that isn't allowed.

    Args:
        overrides: The values by the names of their settings.
    """
    declared = settings.declarations(*kinds)
    return [
        problem
        for name, value in overrides.items()
        if name in declared
        for problem in problems_of_value(
            value, f"--{settings.flag_name(name, declared[name])}", declared[name]
        )
    ]


def problems_of_value(value: Any, flag: str, declaration: Declaration) -> list[str]:
    """Returns a sentence about the value of a flag, such as "--steps", if it is wrong.

    A value of None is always allowed.
    """
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

    Args:
        described: The description of the instance for the sentence, such as
            "phase 'train'".
    """
    kind: Any = type(values)
    declared = settings.declarations(kind)
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
