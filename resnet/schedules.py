"""Learning rates that change with the step: each a pure function of the step."""

import math
from dataclasses import dataclass

DECAYS = ("polynomial", "cosine", "steps", "none")


@dataclass(frozen=True)
class Curve:
    """A learning rate from a step on, which is its step 0.

    First a straight line from `start` at step 0 to `peak` at `warmup_steps`. From there
    on the decay, a function of the share x of the way from `decay_start` to
    `decay_end`, from 0 to 1, where it stays:

    - "polynomial": end + (peak - end) * (1 - x) ** power. With `decay_start` at the end
      of the warm-up it is TensorFlow's polynomial_decay, and with 0 Caffe's `poly` and
      `poly_cyc`, whose rate drops where the warm-up ends.
    - "cosine": end + (peak - end) * (1 + cos(pi * x)) / 2.
    - "steps": peak, times `drop_factor` from each of the `drops` on.
    - "none": peak.

    Attributes:
        start: Rate of step 0.
        peak: Rate that the warm-up leads to and the decay begins from.
        warmup_steps: Length of the warm-up; 0 for none.
        decay: A name of `DECAYS`.
        decay_start: Where the decay is counted from, not after `warmup_steps`.
        decay_end: Where it ends, after `decay_start`.
        power: Of "polynomial".
        end: Rate at `decay_end` and after it.
        drops: Steps of "steps", ascending.
        drop_factor: Of each of them.
    """

    start: float
    peak: float
    warmup_steps: int = 0
    decay: str = "polynomial"
    decay_start: int = 0
    decay_end: int = 0
    power: float = 1.0
    end: float = 0.0
    drops: tuple[int, ...] = ()
    drop_factor: float = 0.1


def learning_rate(curve: Curve, step: int) -> float:
    """Returns the learning rate of one step of a curve, from 0."""
    if step < curve.warmup_steps:
        rise = curve.peak - curve.start
        return curve.start + rise * step / curve.warmup_steps
    if curve.decay == "steps":
        return curve.peak * curve.drop_factor ** sum(
            step >= drop for drop in curve.drops
        )
    if curve.decay == "none":
        return curve.peak
    left = max(curve.decay_end - step, 0) / (curve.decay_end - curve.decay_start)
    if curve.decay == "cosine":
        share = (1 - math.cos(math.pi * left)) / 2
    else:
        share = left**curve.power
    return curve.end + (curve.peak - curve.end) * share
