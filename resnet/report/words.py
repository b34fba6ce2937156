"""Numbers, times and lengths of time in words, as the whole page writes them."""

import datetime
import math
import unicodedata
from typing import Any

MISSING = "–"  # noqa: RUF001 - an en dash, where a table has no value.
_SHOWN_ITEMS = 6


def number(value: Any, digits: int = 5) -> str:
    """Returns a number with so many significant digits, or what else it is."""
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}g}"
    return f"{value:,.{digits}g}" if abs(value) < 1e4 else f"{value:,.0f}"


def percent(fraction: float | None) -> str:
    """Returns a fraction in percent."""
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    return f"{100 * fraction:.2f}\u00a0%"  # A line doesn't break in it.


def moment(seconds: float | None) -> str:
    """Returns a moment in seconds since 1970 as date and time in UTC."""
    if not seconds:
        return MISSING
    try:
        when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return MISSING
    return when.strftime("%Y-%m-%d %H:%M:%S")


def isolated(name: str) -> str:
    """Returns a name that doesn't reorder the text around it, as Arabic would.

    Source: Unicode Standard Annex #9, section 2.4.2, explicit directional isolates.
    """
    if any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in name):
        return f"\u2068{name}\u2069"
    return name


def value(setting: Any) -> str:
    """Returns the value of a setting; of a long list only its beginning."""
    if isinstance(setting, list | tuple):
        shown = ", ".join(map(value, setting[:_SHOWN_ITEMS]))
        more = f", … ({len(setting):,})" if len(setting) > _SHOWN_ITEMS else ""
        return shown + more or "none"
    if isinstance(setting, dict):
        return ", ".join(f"{key}: {value(inner)}" for key, inner in setting.items())
    if isinstance(setting, bool) or setting is None:
        return {True: "yes", False: "no", None: "none"}[setting]
    if isinstance(setting, float):
        return f"{setting:g}"
    return str(setting) or "none"
