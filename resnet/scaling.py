"""How a recipe fits another batch, another data set and another length."""

import math
from collections.abc import Mapping
from typing import Any

from data_prep.errors import UserError
from resnet.phases import Phase
from resnet.recipe import Rates, Recipe
from resnet.schedules import Curve

# What can be given for all phases at once, if the recipe has one value for them all.
PHASE_SETTINGS = (
    "momentum",
    "weight_decay",
    "label_smoothing",
    "image_size",
    "augmentation",
    "smallest_crop",
    "random_augment",
    "mixup",
    "cutmix",
)
RATE_SETTINGS = (
    "base_learning_rate",
    "peak_learning_rate",
    "warmup_steps",
    "warmup_epochs",
)
LENGTHS = ("train_steps", "train_epochs")
SETTINGS = (*LENGTHS, *RATE_SETTINGS, *PHASE_SETTINGS)


def fit(
    recipe: Recipe,
    given: Mapping[str, Any],
    global_batch_size: int,
    num_train_examples: int,
) -> tuple[Phase, ...]:
    """Returns the phases of a run.

    Lengths stay what they are in epochs, rates scale as the recipe says. A total length
    that is given stretches all lengths of the recipe; but the warm-up of a recipe of
    one phase stays as long as it is.

    Args:
        recipe: The recipe.
        given: What is not to be the recipe's, without `problems_of_given`: some of
            `SETTINGS`.
        global_batch_size: Of the run.
        num_train_examples: Of its data set.

    Raises:
        UserError: If the lengths don't fit into one another.
    """
    steps_per_epoch = num_train_examples / global_batch_size
    stretch = stretch_of(recipe, given, steps_per_epoch)
    lengths = _lengths(recipe, given, stretch * steps_per_epoch)
    factor = rate_factor(recipe, global_batch_size)
    phases = []
    for index, part in enumerate(recipe.phases):
        curve = None
        if part.rates is not None:
            end = index + 1
            while end < len(lengths) and recipe.phases[end].rates is None:
                end += 1
            curve = _curve(
                part.rates,
                given,
                factor,
                steps_per_epoch,
                stretch,
                stretch if len(lengths) > 1 else 1.0,
                sum(lengths[index:end]),
                part.name,
            )
        settings = {
            name: given.get(name, getattr(part, name)) for name in PHASE_SETTINGS
        }
        if settings["image_size"] is None:
            settings["image_size"] = recipe.image_size
        phases.append(
            Phase(part.name, lengths[index], curve, part.fresh_momentum, **settings)
        )
    return tuple(phases)


def _lengths(
    recipe: Recipe, given: Mapping[str, Any], steps_per_epoch: float
) -> list[int]:
    """Returns the steps of each phase, at least one; together, what is given.

    The ends of the phases are rounded, not their lengths, whose sum would drift.

    Args:
        recipe: With the epochs of each.
        given: As `fit` takes it.
        steps_per_epoch: Steps that an epoch of the recipe becomes.
    """
    epochs = [part.epochs for part in recipe.phases]
    num_phases = len(epochs)
    total = given.get("train_steps")
    if total is None:
        total = max(num_phases, round(sum(epochs) * steps_per_epoch))
    if total < num_phases:
        raise UserError(
            f"--train_steps must be at least {num_phases}, one for each phase of"
            f" {recipe.name}; got {total}."
        )
    lengths: list[int] = []
    for number in range(1, num_phases):
        first, last = sum(lengths) + 1, total - (num_phases - number)
        end = round(sum(epochs[:number]) * steps_per_epoch)
        lengths.append(min(max(end, first), last) - sum(lengths))
    return [*lengths, total - sum(lengths)]


def stretch_of(
    recipe: Recipe, given: Mapping[str, Any], steps_per_epoch: float
) -> float:
    """Returns the length of the run as a multiple of the recipe's."""
    epochs = sum(part.epochs for part in recipe.phases)
    if "train_epochs" in given:
        return float(given["train_epochs"] / epochs)
    if "train_steps" in given:
        return float(given["train_steps"] / steps_per_epoch / epochs)
    return 1.0


def rate_factor(recipe: Recipe, global_batch_size: int) -> float:
    """Returns what the recipe's rates are multiplied with for another batch."""
    share = global_batch_size / recipe.global_batch_size
    return {"linear": share, "root": math.sqrt(share), "none": 1.0}[recipe.scaling]


def problems_of_given(recipe: Recipe, given: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each setting that can't be given for the whole run."""
    problems = []
    for steps, epochs in (LENGTHS, ("warmup_steps", "warmup_epochs")):
        if steps in given and epochs in given:
            problems.append(f"--{steps} and --{epochs} exclude each other; got both.")
    for name in PHASE_SETTINGS:
        values = {getattr(part, name) for part in recipe.phases}
        if name in given and len(values) > 1:
            problems.append(_differs(name, recipe))
    if sum(part.rates is not None for part in recipe.phases) > 1:
        problems += [_differs(name, recipe) for name in RATE_SETTINGS if name in given]
    return problems


def _differs(name: str, recipe: Recipe) -> str:
    return (
        f"--{name} can't be one for the whole run: it differs among the"
        f" {len(recipe.phases)} phases of {recipe.name}. Change it in a recipe file."
    )


def _curve(
    rates: Rates,
    given: Mapping[str, Any],
    factor: float,
    steps_per_epoch: float,
    stretch: float,
    warmup_stretch: float,
    length: int,
    name: str,
) -> Curve:
    """Returns rates over the steps of a run.

    Args:
        rates: Over the epochs, for the recipe's batch.
        given: What is not to be the recipe's.
        factor: What another batch multiplies them with.
        steps_per_epoch: Of the run.
        stretch: Epochs of the run that one of the recipe becomes.
        warmup_stretch: The same of its warm-up.
        length: Steps that the rates are for.
        name: Of their phase, for the sentence of an error.
    """
    warmup_steps = given.get("warmup_steps")
    if warmup_steps is None:
        warmup_epochs = given.get("warmup_epochs")
        if warmup_epochs is None:
            warmup_epochs = rates.warmup_epochs * warmup_stretch
        warmup_steps = round(warmup_epochs * steps_per_epoch)
    if warmup_steps >= length:
        raise UserError(
            "the warm-up must end before the training; got"
            f" warmup_steps={warmup_steps}, {length} steps in all of phase {name!r}."
            " Shorten it (--warmup_steps, or a recipe file if each phase has rates of"
            " its own), or train longer."
        )
    peak = given.get("peak_learning_rate")
    start = given.get("base_learning_rate")
    own_start = rates.start * (factor if rates.start_scales else 1)
    if peak is None:
        peak = rates.peak * factor
        if start and own_start:
            peak *= start / own_start
    if start is None:  # A warm-up does not fall.
        start = min(own_start, peak)
    elif warmup_steps and start > peak:
        raise UserError(
            "a warm-up must not fall: --base_learning_rate must be at most the peak;"
            f" got {start:g} and {peak:g}. Lower it, or raise --peak_learning_rate."
        )
    decay_start = 0 if rates.decays_from_start else warmup_steps
    decay_end = length
    if rates.decay_epochs is not None:
        decay_end = round(rates.decay_epochs * stretch * steps_per_epoch)
    if decay_end <= decay_start:
        raise UserError(
            "a decay must end after the warm-up that it begins from; got the end"
            f" {decay_end} and the beginning {decay_start} in steps of phase {name!r}"
        )
    return Curve(
        start=start,
        peak=peak,
        warmup_steps=warmup_steps,
        decay=rates.decay,
        decay_start=decay_start,
        decay_end=decay_end,
        power=rates.power,
        end=min(rates.end * factor, peak),
        drops=tuple(
            round(one * stretch * steps_per_epoch) for one in rates.drop_epochs
        ),
        drop_factor=rates.drop_factor,
    )
