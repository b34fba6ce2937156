"""Times with a unit, such as 1h or 45min, and how they are shown."""

import re

from resnet.base.errors import UserError

_SECONDS = {"s": 1, "min": 60, "h": 3600}


def parse(text: str, flag: str) -> float:
    """Returns a time in seconds.

    Args:
        text: A number and a unit, "s", "min" or "h".
        flag: The flag that has the text, for the error.

    Raises:
        UserError: If it isn't such a text, or the time is 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
    if not match or not float(match[1]):
        raise UserError(
            f"{flag} must be a time above 0 in s, min or h, such as 1h or 45min; got"
            f" {text!r}."
        )
    return float(match[1]) * _SECONDS[match[2]]


def show(seconds: float) -> str:
    """Returns a time as text, in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:,.1f} h"
