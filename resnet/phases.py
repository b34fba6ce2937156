"""The phases of a run: what each of its steps does, a pure function of the step."""

from collections.abc import Sequence
from dataclasses import dataclass

from resnet import schedules
from resnet.schedules import Curve


@dataclass(frozen=True)
class Phase:
    """A part of a run; its lengths in steps, its rates for the run's global batch.

    Attributes:
        name: Of the phase.
        num_steps: Its length.
        curve: Of the learning rate, its step 0 being the phase's first; None goes on
            along the curve of the phase before.
        fresh_momentum: Whether the velocities start at zero in it.
        momentum: Of the velocity.
        weight_decay: Times the variable, added to its gradient.
        label_smoothing: Share of the label that is spread evenly over all classes.
        image_size: Side of the images that it trains on, in pixels.
        augmentation: A name of `config.AUGMENTATIONS`.
        smallest_crop: Least share of a picture's area that "random_resized_crop" cuts
            out.
        random_augment: Magnitude of RandAugment's operations, 0 to 10; 0 for none.
        mixup: The alpha of mixup; 0 for none.
        cutmix: The alpha of CutMix; 0 for none.
    """

    name: str
    num_steps: int
    curve: Curve | None
    fresh_momentum: bool = False
    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    image_size: int = 224
    augmentation: str = "random_resized_crop"
    smallest_crop: float = 0.08
    random_augment: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0


def num_steps(phases: Sequence[Phase]) -> int:
    """Returns the steps of all phases together."""
    return sum(phase.num_steps for phase in phases)


def first_steps(phases: Sequence[Phase]) -> list[int]:
    """Returns the step that each phase begins with, from 0."""
    firsts, first = [], 0
    for phase in phases:
        firsts.append(first)
        first += phase.num_steps
    return firsts


def first_step(phases: Sequence[Phase], name: str) -> int:
    """Returns the step that the phase of that name begins with; 0 of no name."""
    names = [phase.name for phase in phases]
    return first_steps(phases)[names.index(name)] if name else 0


def index_of(phases: Sequence[Phase], step: int) -> int:
    """Returns which of the phases a step is of; past the end, the last."""
    return sum(first <= step for first in first_steps(phases)) - 1


def at(phases: Sequence[Phase], step: int) -> Phase:
    """Returns the phase that a step is of."""
    return phases[index_of(phases, step)]


def forgets_at(phases: Sequence[Phase], step: int) -> bool:
    """Returns whether the velocities are set to zero before a step."""
    return step in first_steps(phases) and at(phases, step).fresh_momentum


def ended_by(phases: Sequence[Phase], step: int) -> Phase | None:
    """Returns the phase that ends when so many steps are done, or None."""
    ends = [*first_steps(phases)[1:], num_steps(phases)]
    return phases[ends.index(step)] if step in ends else None


def curve_at(phases: Sequence[Phase], step: int) -> tuple[int, Curve]:
    """Returns the step that the curve of a step's rates begins with, and the curve."""
    index = index_of(phases, step)
    while (curve := phases[index].curve) is None:
        index -= 1
    return first_steps(phases)[index], curve


def learning_rate(phases: Sequence[Phase], step: int) -> float:
    """Returns the learning rate of one step of the run, from 0."""
    first, curve = curve_at(phases, step)
    return schedules.learning_rate(curve, step - first)


def momentum(phases: Sequence[Phase], step: int, corrected: bool) -> float:
    """Returns what a step multiplies the velocity with.

    Args:
        phases: Of the run.
        step: From 0.
        corrected: Whether the velocity is to have the learning rates in it with which
            its gradients came, as Caffe's has: velocity = momentum * velocity + rate *
            gradient. Our velocity has none; that of the step before times this number
            is the same. Goyal et al. 2017, arXiv:1706.02677, remark 3. After a rate of
            0 nothing is left of it.
    """
    phase = at(phases, step)
    if not corrected or step == 0 or forgets_at(phases, step):
        return phase.momentum
    now, before = (learning_rate(phases, one) for one in (step, step - 1))
    return phase.momentum * before / now if now else phase.momentum
