"""How often a run saves or evaluates: intervals in steps, epochs or minutes."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from resnet.base.errors import UserError

UNITS = "steps, epochs or minutes, such as 500steps, 2epochs or 10minutes"
UNITS_OF_STEPS = "steps or epochs, such as 500steps or 2epochs"
_FORM = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) ?(steps?|epochs?|minutes?)")


@dataclass(frozen=True)
class Interval:
    """A length of more than 0 in a unit: "step", "epoch" or "minute"."""

    length: Fraction
    unit: str

    def __str__(self) -> str:
        if self.length == 1:
            return self.unit
        return f"{float(self.length):g} {self.unit}s"

    def ends_at(
        self, step: int, examples_per_epoch: int, batch_size: int, since: int
    ) -> bool:
        """Returns whether one, not in minutes, ends after `since` and up to `step`."""
        if self.unit == "minute":
            return False
        sizes = examples_per_epoch, batch_size
        return self.number_at(step, *sizes) > self.number_at(since, *sizes)

    def number_at(self, step: int, examples_per_epoch: int, batch_size: int) -> int:
        """Returns the number of intervals, not in minutes, within `step` steps."""
        return math.floor(step / self._steps(examples_per_epoch, batch_size))

    def next_end(self, step: int, examples_per_epoch: int, batch_size: int) -> int:
        """Returns the next number of steps at which one, not in minutes, ends."""
        sizes = examples_per_epoch, batch_size
        return math.ceil((self.number_at(step, *sizes) + 1) * self._steps(*sizes))

    def _steps(self, examples_per_epoch: int, batch_size: int) -> Fraction:
        if self.unit == "epoch":
            return self.length * Fraction(examples_per_epoch, batch_size)
        return self.length

    @property
    def seconds(self) -> float | None:
        """The length in seconds; None for intervals in steps or epochs."""
        return float(60 * self.length) if self.unit == "minute" else None


def parse(text: str, flag: str, units: str = UNITS) -> Interval:
    """Returns the interval in a text such as `10minutes`; another is a UserError."""
    match = _FORM.fullmatch(text.strip())
    length = Fraction(match[1]) if match else Fraction(0)
    unit = match[2].rstrip("s") if match else ""
    if (
        length <= 0
        or (unit == "step" and length.denominator != 1)
        or (unit == "minute" and units != UNITS)
    ):
        raise UserError(f"{flag} must be a number of {units}; got {text!r}.")
    return Interval(length, unit)
