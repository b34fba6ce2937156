"""Makes the settings of a run: a recipe, adapted to batch size, data set and length."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resnet.base import settings
from resnet.base.errors import UserError
from resnet.base.settings import (
    ABOVE_ZERO,
    AT_LEAST_ZERO,
    COUNT,
    COUNT_OR_ZERO,
    setting,
)
from resnet.config import rules, topics
from resnet.config.config import Config
from resnet.config.phases import Phase, PhaseSettings, end_of_schedule
from resnet.config.recipe import Recipe, TrainingSettings
from resnet.config.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class ScheduleOverrides:
    """Overrides of lengths and learning rates, for which a `Config` has no fields."""

    train_steps: int | None = setting(
        None,
        "The length of the training in steps.",
        elsewhere="max_steps",
        bounds=COUNT,
        topic=topics.RECIPE,
        common=True,
    )
    train_epochs: float | None = setting(
        None,
        "The length of the training in epochs, instead of --train_steps.",
        elsewhere="epochs num_epochs max_epochs",
        bounds=(1e-9, 1e6),
        topic=topics.RECIPE,
        common=True,
    )
    base_learning_rate: float | None = setting(
        None,
        "The learning rate of step 0; where the recipe's isn't 0, the peak learning"
        " rate is multiplied by the same factor.",
        bounds=AT_LEAST_ZERO,
        topic=topics.RATES,
    )
    peak_learning_rate: float | None = setting(
        None,
        "The learning rate after the warmup; unset, the recipe's for the batch size.",
        elsewhere="lr learning_rate max_lr",
        bounds=ABOVE_ZERO,
        topic=topics.RATES,
        common=True,
    )
    warmup_steps: int | None = setting(
        None,
        "The length of the warmup in steps.",
        bounds=COUNT_OR_ZERO,
        topic=topics.RATES,
    )
    warmup_epochs: float | None = setting(
        None,
        "The length of the warmup in epochs, instead of --warmup_steps.",
        bounds=(0, 1e6),
        topic=topics.RATES,
        common=True,
    )


_TRIAL = (
    "To run only the first steps of the recipe, unchanged, give --stop_after_steps"
    " instead of --train_steps."
)
_OF_SEVERAL_LABELS = {
    "loss": "binary_cross_entropy",
    "best_metric": "mean_average_precision",
}
# All that can be overridden, in the order of the flags.
OVERRIDABLE = (ScheduleOverrides, TrainingSettings, PhaseSettings, Config)


def resolve(
    recipe: Recipe,
    overrides: Mapping[str, Any],
    num_train_examples: int,
    class_names: tuple[str, ...],
    multi_label: bool = False,
) -> Config:
    """Returns the settings of a run: the recipe's, but for overrides other than None.

    Without class names, there are as many classes as in the recipe's data set. With
    several labels an image (`multi_label`), the loss is binary cross-entropy. A
    setting that isn't in `OVERRIDABLE` is a TypeError, and one that is out of its range
    or contradicts another one a UserError.
    """
    overrides = {name: value for name, value in overrides.items() if value is not None}
    if unknown := sorted(set(overrides) - set(settings.declarations(*OVERRIDABLE))):
        raise TypeError(f"there is no setting {unknown[0]!r} to override")
    problems = settings.validate_overrides(overrides, *OVERRIDABLE)
    if problems := problems + rules.problems_of_overrides(recipe, overrides):
        raise UserError(" ".join(problems))
    if multi_label:
        overrides = _OF_SEVERAL_LABELS | overrides
    names = {field.name for field in dataclasses.fields(Config)} - {"phases"}
    values = {**vars(recipe), **overrides}
    values = {name: values[name] for name in names & set(values)}
    values.update(
        recipe=recipe.name,
        num_train_examples=num_train_examples,
        class_names=class_names,
        num_classes=len(class_names) or recipe.num_classes,
        multi_label=multi_label,
        phases=phases_in_steps(
            recipe, overrides, values["global_batch_size"], num_train_examples
        ),
    )
    config = Config(**values)
    if problems := rules.problems_of(config):
        raise UserError(" ".join(problems))
    return config


def length_scale(
    recipe: Recipe, overrides: Mapping[str, Any], steps_per_epoch: float
) -> float:
    """Returns the length of the run as a multiple of the recipe's."""
    if "train_epochs" in overrides:
        return float(overrides["train_epochs"] / recipe.epochs)
    if "train_steps" in overrides:
        return float(overrides["train_steps"] / steps_per_epoch / recipe.epochs)
    return 1.0


def phases_in_steps(
    recipe: Recipe,
    overrides: Mapping[str, Any],
    global_batch_size: int,
    num_train_examples: int,
) -> tuple[Phase, ...]:
    """Returns the phases of a run; what doesn't fit into its length is a UserError.

    Another total length scales all lengths but the warmup of a recipe with one phase.
    Of a run with fewer steps than phases, the longest phases get one step each; the
    others are left out, and leave their schedules to the phases that followed them.
    """
    steps_per_epoch = num_train_examples / global_batch_size
    scale = length_scale(recipe, overrides, steps_per_epoch)
    lengths = _lengths(recipe, overrides, scale * steps_per_epoch)
    scaling = Scaling(
        steps_per_epoch=steps_per_epoch,
        length_scale=scale,
        warmup_scale=scale if len(lengths) > 1 else 1.0,
        rate_factor=recipe.rate_factor(global_batch_size),
    )
    phases, schedule = [], None
    for index, part in enumerate(recipe.phases):
        if part.schedule is not None:
            end = end_of_schedule(recipe.phases, index)
            num_steps = sum(lengths[index:end])
            if num_steps:
                schedule = schedule_in_steps(
                    part.schedule, scaling, overrides, num_steps, part.name
                )
        if not lengths[index]:
            continue
        values = {
            field.name: overrides.get(field.name, getattr(part, field.name))
            for field in dataclasses.fields(PhaseSettings)
        }
        values["image_size"] = values["image_size"] or recipe.image_size
        values["schedule"], schedule = schedule, None
        phases.append(Phase(num_steps=lengths[index], **values))
    return tuple(phases)


def _lengths(
    recipe: Recipe, overrides: Mapping[str, Any], steps_per_epoch: float
) -> list[int]:
    """Returns the steps of each phase, with rounded ends of phases.

    The total is `train_steps`, or `train_epochs` rounded to a step, at least one.
    """
    epochs = [part.epochs for part in recipe.phases]
    num_phases = len(epochs)
    total = overrides.get("train_steps", max(1, round(sum(epochs) * steps_per_epoch)))
    if total < num_phases:
        longest = sorted(range(num_phases), key=epochs.__getitem__, reverse=True)
        return [int(index in longest[:total]) for index in range(num_phases)]
    lengths: list[int] = []
    for number in range(1, num_phases):
        first, last = sum(lengths) + 1, total - (num_phases - number)
        end = round(sum(epochs[:number]) * steps_per_epoch)
        lengths.append(min(max(end, first), last) - sum(lengths))
    return [*lengths, total - sum(lengths)]


@dataclass(frozen=True)
class Scaling:
    """The factors that turn the times and rates of a recipe into those of a run."""

    steps_per_epoch: float
    length_scale: float  # The epochs of the run that one of the recipe becomes,
    warmup_scale: float  # and one of its warmup.
    rate_factor: float

    def steps(self, epochs: float) -> int:
        """Returns the steps that epochs of the recipe become."""
        return round(epochs * self.length_scale * self.steps_per_epoch)


def schedule_in_steps(
    schedule: Schedule,
    scaling: Scaling,
    overrides: Mapping[str, Any],
    num_steps: int,
    name: str,
) -> Schedule:
    """Returns the schedule of a run, from that of a recipe's phase of some name."""
    warmup_steps = overrides.get("warmup_steps")
    if warmup_steps is None:
        own = schedule.warmup_length * scaling.warmup_scale
        epochs = overrides.get("warmup_epochs", own)
        warmup_steps = round(epochs * scaling.steps_per_epoch)
    trial = f" {_TRIAL}" if "train_steps" in overrides else ""
    if warmup_steps >= num_steps:
        raise UserError(
            f"the warmup must end before the training; got warmup_steps={warmup_steps},"
            f" {num_steps} steps in all of phase {name!r}. Shorten it (--warmup_steps,"
            " or a recipe file if each phase has a schedule), or train longer."
            f"{trial}"
        )
    init_value, peak_value = _rates(schedule, scaling, overrides, warmup_steps)
    start, end = schedule.decay_start, schedule.decay_end
    decay_start = warmup_steps if start is None else scaling.steps(start)
    decay_end = num_steps if end is None else scaling.steps(end)
    earliest = max(decay_start, warmup_steps)
    if decay_end <= earliest:
        raise UserError(
            "a decay must end after its beginning and after the warmup; got the end"
            f" {decay_end} and {earliest} in steps of phase {name!r}."
            f" Change it in a recipe file, or train longer.{trial}"
        )
    return dataclasses.replace(
        schedule,
        init_value=init_value,
        peak_value=peak_value,
        warmup_length=warmup_steps,
        decay_start=decay_start,
        decay_end=decay_end,
        end_value=min(schedule.end_value * scaling.rate_factor, peak_value),
        boundaries=tuple(scaling.steps(epoch) for epoch in schedule.boundaries),
        init_value_scales=True,
    )


def _rates(
    schedule: Schedule,
    scaling: Scaling,
    overrides: Mapping[str, Any],
    warmup_steps: int,
) -> tuple[float, float]:
    """Returns the learning rates of step 0 and of the end of the warmup."""
    peak = overrides.get("peak_learning_rate")
    init = overrides.get("base_learning_rate")
    factor = scaling.rate_factor
    own_init = schedule.init_value * (factor if schedule.init_value_scales else 1)
    if peak is None:
        peak = schedule.peak_value * factor
        if init and own_init:
            peak *= init / own_init
    if init is None:  # The rate can't fall in a warmup.
        init = min(own_init, peak)
    elif warmup_steps and init > peak:
        raise UserError(
            "the learning rate can't fall in a warmup: --base_learning_rate must be at"
            f" most the peak; got {init:g} and {peak:g}. Lower it, or raise"
            " --peak_learning_rate."
        )
    return init, peak
