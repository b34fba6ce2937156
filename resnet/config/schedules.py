"""Learning rates that change with the step: each a pure function of the step."""

import math
from dataclasses import dataclass

from resnet.base.settings import ABOVE_ZERO, AT_LEAST_ZERO, COUNT_OR_ZERO, setting

DECAYS = ("polynomial", "cosine", "steps", "none")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning rate over the time since its beginning, which is time 0.

    Times are in epochs in a recipe, and in steps in a run; rates are for its batch.

    The rate first rises in a straight line from `init_value` at time 0 to `peak_value`
    at `warmup_length`. Then it decays as a function of the fraction x of the way from
    `decay_start` to `decay_end`, from 0 to 1, where it stays:

    - "polynomial": end + (peak - end) * (1 - x) ** power. With `decay_start` at the end
      of the warmup it is TensorFlow's polynomial_decay, and with 0 Caffe's `poly` and
      `poly_cyc`, whose rate drops where the warmup ends.
    - "cosine": end + (peak - end) * (1 + cos(pi * x)) / 2.
    - "steps": peak, times `decay_factor` from each of the `boundaries` on.
    - "none": peak.

    Attributes:
        decay_start: Not after the end of the warmup; in a recipe, None is that end.
        decay_end: In a recipe, None is the end of the phases that it is for.
        boundaries: In ascending order.
        init_value_scales: Whether another batch size scales a recipe's `init_value` as
            it scales `peak_value`.
    """

    peak_value: float = setting(bounds=ABOVE_ZERO)
    init_value: float = setting(0.0, bounds=AT_LEAST_ZERO)
    warmup_length: int | float = setting(0, bounds=COUNT_OR_ZERO)
    decay: str = setting("polynomial", names=DECAYS)
    decay_start: int | float | None = None
    decay_end: int | float | None = setting(None, bounds=COUNT_OR_ZERO)
    power: float = setting(1.0, bounds=(1e-9, math.inf))
    end_value: float = setting(0.0, bounds=AT_LEAST_ZERO)
    boundaries: tuple[int | float, ...] = ()
    decay_factor: float = setting(0.1, bounds=(0, 1))
    init_value_scales: bool = True


def learning_rate(schedule: Schedule, step: int) -> float:
    """Returns the learning rate of a step, counted from the schedule's beginning."""
    if step < schedule.warmup_length:
        rise = schedule.peak_value - schedule.init_value
        return schedule.init_value + rise * step / schedule.warmup_length
    if schedule.decay == "steps":
        return schedule.peak_value * schedule.decay_factor ** sum(
            step >= boundary for boundary in schedule.boundaries
        )
    if schedule.decay == "none":
        return schedule.peak_value
    if schedule.decay_end is None:
        raise ValueError("expected a schedule in steps; its decay has no end")
    start = schedule.decay_start
    start = schedule.warmup_length if start is None else start
    left = max(schedule.decay_end - step, 0) / (schedule.decay_end - start)
    if schedule.decay == "cosine":
        fraction = (1 - math.cos(math.pi * left)) / 2
    else:
        fraction = left**schedule.power
    fall = schedule.peak_value - schedule.end_value
    return float(schedule.end_value + fall * fraction)
