"""How often a run saves or evaluates: every so many steps, epochs or minutes."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from data_prep.errors import UserError

UNITS = "steps, epochs or minutes, such as 500steps, 2epochs or 10minutes"
UNITS_OF_STEPS = "steps or epochs, such as 500steps or 2epochs"
_FORM = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) ?(steps?|epochs?|minutes?|)")


@dataclass(frozen=True)
class Interval:
    """A length in one of three units.

    Attributes:
        length: More than 0.
        unit: "step", "epoch" or "minute".
    """

    length: Fraction
    unit: str

    def __str__(self) -> str:
        if self.length == 1:
            return self.unit
        return f"{float(self.length):g} {self.unit}s"

    def ends_at(self, step: int, examples_per_epoch: int, batch_size: int) -> bool:
        """Returns whether an interval ends with the step that makes `step` steps.

        Of minutes, which the steps don't tell, none does.

        Args:
            step: Steps done, from 1.
            examples_per_epoch: Training examples.
            batch_size: Examples in a step.
        """
        if self.unit == "minute":
            return False
        sizes = examples_per_epoch, batch_size
        return self.number_at(step, *sizes) > self.number_at(step - 1, *sizes)

    def number_at(self, step: int, examples_per_epoch: int, batch_size: int) -> int:
        """Returns how many intervals, not of minutes, have ended after `step` steps."""
        return math.floor(step / self._steps(examples_per_epoch, batch_size))

    def next_end(self, step: int, examples_per_epoch: int, batch_size: int) -> int:
        """Returns the first step behind one at which an interval, not of minutes, ends.

        Args:
            step: Steps done, from 0.
            examples_per_epoch: Training examples.
            batch_size: Examples in a step.
        """
        sizes = examples_per_epoch, batch_size
        return math.ceil((self.number_at(step, *sizes) + 1) * self._steps(*sizes))

    def _steps(self, examples_per_epoch: int, batch_size: int) -> Fraction:
        if self.unit == "epoch":
            return self.length * Fraction(examples_per_epoch, batch_size)
        return self.length

    @property
    def seconds(self) -> float | None:
        """The length, if it is one of time."""
        return float(60 * self.length) if self.unit == "minute" else None


def parse(text: str, flag: str, units: str = UNITS) -> Interval:
    """Returns what a flag says: `500`, `500 steps`, `2epochs`, `10minutes`.

    Args:
        text: The flag's value.
        flag: Its name, for the sentence of an error.
        units: `UNITS`, or `UNITS_OF_STEPS` where minutes make no sense.

    Raises:
        UserError: If it says nothing of the kind.
    """
    match = _FORM.fullmatch(text.strip())
    length = Fraction(match[1]) if match else Fraction(0)
    unit = (match[2].rstrip("s") if match else "") or "step"
    if (
        length <= 0
        or (unit == "step" and length.denominator != 1)
        or (unit == "minute" and units != UNITS)
    ):
        raise UserError(f"{flag} must be a number of {units}; got {text!r}.")
    return Interval(length, unit)
