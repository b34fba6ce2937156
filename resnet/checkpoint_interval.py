"""How often a run saves: every so many steps, epochs or minutes."""

import re
from dataclasses import dataclass
from fractions import Fraction

from data_prep.errors import UserError

_FORM = re.compile(r"(\d+(?:\.\d+)?) ?(steps?|epochs?|minutes?|)")


@dataclass(frozen=True)
class CheckpointInterval:
    """A length in one of three units.

    Attributes:
        length: More than 0.
        unit: "step", "epoch" or "minute".
    """

    length: Fraction
    unit: str

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
        each = Fraction(1)
        if self.unit == "epoch":
            each = Fraction(batch_size, examples_per_epoch)
        return step * each // self.length > (step - 1) * each // self.length

    @property
    def seconds(self) -> float | None:
        """The length, if it is one of time."""
        return float(60 * self.length) if self.unit == "minute" else None


def parse(text: str) -> CheckpointInterval:
    """Returns what --checkpoint_every says: `500`, `500 steps`, `2epochs`, `10minutes`.

    Raises:
        UserError: If it says nothing of the kind.
    """
    match = _FORM.fullmatch(text.strip())
    length = Fraction(match[1]) if match else Fraction(0)
    unit = (match[2].rstrip("s") if match else "") or "step"
    if length <= 0 or (unit == "step" and length.denominator != 1):
        raise UserError(
            "--checkpoint_every must be a number of steps, epochs or minutes, such as"
            f" 500steps, 2epochs or 10minutes; got {text!r}."
        )
    return CheckpointInterval(length, unit)
