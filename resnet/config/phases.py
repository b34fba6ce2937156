"""The phases of a run, and what each step does as a pure function of its number."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from resnet.base.errors import UserError
from resnet.base.settings import (
    ABOVE_ZERO,
    AT_LEAST_ZERO,
    COUNT,
    FRACTION,
    recipe_setting,
    setting,
)
from resnet.config import schedules, topics
from resnet.config.schedules import Schedule

SMALLEST_IMAGE = 16  # The last blocks of the networks for 32 px have one pixel of it.
LARGEST_IMAGE = 1024
AUGMENTATIONS = (
    "random_resized_crop",
    "random_resized_crop_2018_02",
    "random_crop",
    "random_shift",
    "pad_crop_flip_cutout",
    "pad_crop_flip",
    "none",
)
# The smallest fraction of an image's area that a random resized crop takes, even if
# `min_crop_area` is smaller: `min_object_covered` of the TPU code.
MIN_OBJECT_COVERED = 0.1
# The numbers of a phase that are told and drawn beside the learning rate.
DRAWN = ("weight_decay", "momentum")


@dataclass(frozen=True, kw_only=True)
class PhaseSettings:
    """The settings that a phase of a recipe and a phase of a run have in common."""

    TOPIC: ClassVar[str] = topics.LABELS

    name: str = "train"
    schedule: Schedule | None = None  # None continues that of the phase before.
    reset_momentum: bool = False
    momentum: float = setting(
        0.9,
        "The coefficient of the SGD momentum, for example 0.9.",
        bounds=FRACTION,
        topic=topics.RATES,
    )
    weight_decay: float = setting(
        5e-5,
        "The weight decay: L2, or with --optimizer=sgdw or adamw decoupled. Batch"
        " normalization's parameters don't decay, unless the recipe has"
        " decay_batch_norm; nor do biases with LARS, and convolutions with Muon.",
        elsewhere="wd l2",
        bounds=AT_LEAST_ZERO,
        topic=topics.RATES,
        common=True,
    )
    loss: str = setting(
        "cross_entropy",
        "The loss, one of {names}: of a softmax, or summed over the classes, with"
        " which the last layer's biases begin at -log(classes).",
        names=("cross_entropy", "binary_cross_entropy"),
    )
    target_threshold: float = recipe_setting(
        0.0,
        "With binary_cross_entropy, labels above it count as 1, others as 0; 0 is off.",
        bounds=FRACTION,
    )
    label_smoothing: float = setting(
        0.0,
        "The fraction of each label that is spread evenly over all classes.",
        bounds=FRACTION,
    )
    image_size: int | None = recipe_setting(
        None,
        "The side in pixels of the images in training; None is the recipe's.",
        bounds=(SMALLEST_IMAGE, LARGEST_IMAGE),
    )
    flips: str = recipe_setting(
        "random",
        "How images are flipped: with probability 1/2, or in every other epoch.",
        names=("random", "alternating"),
    )
    shift_fraction: float = recipe_setting(
        0.125, "The largest shift of padding crops, in images' sides.", bounds=(0, 0.5)
    )
    cutout_fraction: float = recipe_setting(
        0.25, "The side of the cutout mask, in images' sides.", bounds=FRACTION
    )
    augmentation: str = setting(
        "random_resized_crop",
        "The cropping and flipping of training images, one of {names}.",
        names=AUGMENTATIONS,
        common=True,
    )
    min_crop_area: float = recipe_setting(
        0.08,
        "The smallest fraction of an image's area that a random resized crop takes;"
        " below 0.1 it acts as 0.1.",
        bounds=(1e-9, 1),
    )
    random_augment: float = setting(
        0.0,
        "The magnitude of RandAugment's operations, from 0 to 10; 0 turns it off.",
        bounds=(0, 10),
    )
    mixup: float = setting(
        0.0,
        "The alpha of mixup's Beta distribution; 0 turns mixup off.",
        bounds=AT_LEAST_ZERO,
    )
    cutmix: float = setting(
        0.0,
        "The alpha of CutMix's Beta distribution; 0 turns CutMix off.",
        bounds=AT_LEAST_ZERO,
    )
    layer_rates: str = setting(
        "",
        "Multipliers of the learning rate as prefix:factor pairs, such as"
        " stem:0,stage1:0.1,classifier:10; a prefix begins layers' names, or with a"
        " slash is a kind of variable, as in /beta:64. 0 freezes weights.",
        topic=topics.RATES,
    )
    layer_rates_scale_decay: bool = recipe_setting(
        True, "Whether the factors of layer_rates also multiply the weight decay."
    )
    freeze_batch_norm: bool = setting(
        False,
        "Whether batch normalization uses its moving statistics in training too, and"
        " doesn't update them; Lookahead still moves them.",
        topic=topics.RATES,
    )
    sync_every: int = setting(
        1,
        "The steps that each rank trains by itself before the ranks average their"
        " weights (local SGD); with 1 they average their gradients in each step.",
        bounds=COUNT,
        topic=topics.LOCAL_SGD,
        common=True,
    )
    qsr_coefficient: float = setting(
        0.0,
        "The coefficient c of the quadratic synchronization rule (QSR), by which the"
        " ranks average their weights after max(sync_every, floor((c / rate)^2))"
        " steps; 0 turns it off.",
        bounds=AT_LEAST_ZERO,
        topic=topics.LOCAL_SGD,
    )
    local_velocities: str = setting(
        "keep",
        "What becomes of the ranks' velocities at an average, one of {names}.",
        names=("keep", "average", "reset"),
        topic=topics.LOCAL_SGD,
    )
    outer_momentum: float = setting(
        0.0,
        "The momentum over the averages of the weights (SlowMo); 0 turns it off.",
        bounds=FRACTION,
        topic=topics.LOCAL_SGD,
    )
    outer_nesterov: bool = recipe_setting(
        False, "Whether the outer momentum is Nesterov's, as in DiLoCo."
    )
    outer_learning_rate: float = recipe_setting(
        1.0, "The factor of the rate in the outer update.", bounds=ABOVE_ZERO
    )

    @property
    def smallest_crop_area(self) -> float:
        """The smallest fraction of the area that random resized crops really take."""
        return max(self.min_crop_area, MIN_OBJECT_COVERED)

    @property
    def is_local(self) -> bool:
        """Whether each rank trains by itself for some steps (local SGD)."""
        return self.sync_every > 1 or self.qsr_coefficient > 0


@dataclass(frozen=True, kw_only=True)
class Phase(PhaseSettings):
    """A phase of a run; its schedule is in steps and for the run's global batch."""

    num_steps: int
    image_size: int = 224


class StepSettings(NamedTuple):
    """The hyperparameters of one step, from 0: Python numbers.

    In a graph, those of type Any are float32 scalar tensors, and `step` an int64 one.
    """

    learning_rate: Any  # The rate for the mean gradient of the global batch.
    velocity_factor: Any  # The factor of the previous velocity (`velocity_factor`).
    nesterov_momentum: Any  # The factor of the new velocity in Nesterov's update.
    decay: float  # The factor of a variable that is added to its gradient.
    ema_decay: Any = 0.0  # Of the moving average of the weights; 0 without one.
    step: Any = 0
    decay_is_scaled: bool = True  # Whether the factors of layers' rates scale it too.


def end_of_schedule(phases: Sequence[PhaseSettings], index: int) -> int:
    """Returns the index after the last phase that follows the schedule of a phase."""
    end = index + 1
    while end < len(phases) and phases[end].schedule is None:
        end += 1
    return end


def num_steps(phases: Sequence[Phase]) -> int:
    """Returns the steps of all phases together."""
    return sum(phase.num_steps for phase in phases)


def first_steps(phases: Sequence[Phase]) -> list[int]:
    """Returns the step that each phase begins with, from 0."""
    lengths = [phase.num_steps for phase in phases]
    return list(itertools.accumulate(lengths, initial=0))[:-1]


def num_pixels(phases: Sequence[Phase], start: int, end: int) -> int:
    """Returns the pixels that an image has, summed over the steps from start to end.

    A step's time grows with them, since convolutions do the same for each pixel.
    """
    total = 0
    for first, phase in zip(first_steps(phases), phases, strict=True):
        steps = range(max(start, first), min(end, first + phase.num_steps))
        total += len(steps) * phase.image_size**2
    return total


def first_step(phases: Sequence[Phase], name: str) -> int:
    """Returns the first step of the phase of that name; 0 if the name is empty."""
    names = [phase.name for phase in phases]
    return first_steps(phases)[names.index(name)] if name else 0


def index_of(phases: Sequence[Phase], step: int) -> int:
    """Returns the index of the phase that a step is in; past the end, the last one."""
    return sum(first <= step for first in first_steps(phases)) - 1


def at(phases: Sequence[Phase], step: int) -> Phase:
    """Returns the phase that a step is in; past the end, the last one."""
    return phases[index_of(phases, step)]


def resets_momentum_at(phases: Sequence[Phase], step: int) -> bool:
    """Returns whether the velocities are set to zero before a step."""
    return step in first_steps(phases) and at(phases, step).reset_momentum


def freezes_batch_norm_at(phases: Sequence[Phase], step: int) -> bool:
    """Returns whether batch normalization stops updating its averages with a step."""
    if step == 0 or step not in first_steps(phases):
        return False
    before = at(phases, step - 1)
    return at(phases, step).freeze_batch_norm and not before.freeze_batch_norm


def ended_by(phases: Sequence[Phase], step: int) -> Phase | None:
    """Returns the phase that ends when `step` steps are done, or None."""
    ends = [*first_steps(phases)[1:], num_steps(phases)]
    return phases[ends.index(step)] if step in ends else None


def schedule_at(phases: Sequence[Phase], step: int) -> tuple[int, Schedule]:
    """Returns the first step of the schedule that a step follows, and the schedule."""
    index = index_of(phases, step)
    while (schedule := phases[index].schedule) is None:
        index -= 1
    return first_steps(phases)[index], schedule


def learning_rate(phases: Sequence[Phase], step: int) -> float:
    """Returns the learning rate of one step of the run, from 0."""
    first, schedule = schedule_at(phases, step)
    return schedules.learning_rate(schedule, step - first)


def velocity_factor(
    phases: Sequence[Phase], step: int, learning_rate_in_velocity: bool
) -> float:
    """Returns the factor by which a step multiplies the velocity of the step before.

    The velocity contains no rate. With `learning_rate_in_velocity` the update equals
    that of Caffe-style momentum, velocity = momentum * velocity + rate * gradient, by
    the ratio of the previous rate to this one. Momentum corrected by its inverse (Goyal
    et al. 2017, arXiv:1706.02677, remark 3) equals that without the rate.
    """
    phase = at(phases, step)
    if not learning_rate_in_velocity or step == 0 or resets_momentum_at(phases, step):
        return phase.momentum
    now, before = learning_rate(phases, step), learning_rate(phases, step - 1)
    return phase.momentum * before / now if now else phase.momentum


def velocity_factor_of_part(
    settings: StepSettings, number: int, num_workers: int
) -> Any:
    """Returns the factor of the velocity in the update by a worker's part of a batch.

    Parts count from the start of the run; the first of a step has the ratio of rates.
    """
    is_first = number % num_workers == 0
    return settings.velocity_factor if is_first else settings.nesterov_momentum


def parse(text: str) -> dict[str, float]:
    """Returns the factors in a text such as `stem:0,stage1:0.1,/beta:64`."""
    factors: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, number = (word.strip() for word in part.partition(":"))
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not name or name in factors or not 0 <= factor < math.inf:
            raise UserError(
                "--layer_rates must be beginnings of layers' names, or kinds of"
                " variables such as /beta, each once, with factors of at least 0, such"
                f" as stem:0,stage1:0.1,classifier:10; got {text!r}."
            )
        factors[name] = factor
    return factors


def factors_of(text: str, names: Sequence[str]) -> tuple[float, ...]:
    """Returns the factor of each variable's learning rate; empty if all are 1.

    It is that of the longest beginning of the variable's name, times that of its kind,
    the end of the name. A part that fits no variable is a UserError.
    """
    factors = parse(text)
    kinds = [part for part in factors if part.startswith("/")]
    longest_first = sorted(set(factors) - set(kinds), key=len, reverse=True)
    for part in factors:
        if part in kinds and not any(name.endswith(part) for name in names):
            what = "kind"
            known = dict.fromkeys("/" + name.rpartition("/")[2] for name in names)
        elif part not in kinds and not any(name.startswith(part) for name in names):
            what = "layer"
            known = dict.fromkeys(name.split("/")[0] for name in names)
        else:
            continue
        raise UserError(
            f"--layer_rates names no {what} by {part!r}; the {what}s are"
            f" {', '.join(known)}"
        )
    of_variables = tuple(
        next((factors[part] for part in longest_first if name.startswith(part)), 1.0)
        * next((factors[kind] for kind in kinds if name.endswith(kind)), 1.0)
        for name in names
    )
    return () if set(of_variables) <= {1.0} else of_variables
