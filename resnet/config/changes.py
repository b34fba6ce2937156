"""Describes how a run differs from its recipe. Needs no TensorFlow."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resnet.config import resolve
from resnet.config.config import Config
from resnet.config.recipe import Recipe, TrainingSettings

_COMPARED = [
    field.name
    for field in dataclasses.fields(TrainingSettings)
    if field.name != "global_batch_size"
]


def describe_changes(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config, num_ranks: int
) -> list[str]:
    """Returns a phrase for each difference between a run and its recipe.

    Args:
        recipe: The recipe.
        overrides: The overrides from which `resolve.resolve` made the settings.
        config: The settings of the run.
        num_ranks: The number of ranks of the run.
    """
    return [
        *_of_data_and_batch(recipe, overrides, config),
        *_of_normalization(recipe, config, num_ranks),
        *_of_length(recipe, overrides, config),
        *_of_overrides(recipe, overrides, config),
    ]


def _of_data_and_batch(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> list[str]:
    changes = []
    has_other_length = not {"train_steps", "train_epochs"}.isdisjoint(overrides)
    if config.num_train_examples != recipe.num_train_examples:
        text = (
            f"{config.num_train_examples:,} training examples instead of"
            f" {recipe.num_train_examples:,}"
        )
        if not has_other_length:
            text += ": lengths stay those of the recipe in epochs"
        changes.append(text)
    if config.global_batch_size != recipe.global_batch_size:
        text = (
            f"global batch size {config.global_batch_size:,} instead of"
            f" {recipe.global_batch_size:,}"
        )
        ratio = config.global_batch_size / recipe.global_batch_size
        effects = _scaled_rates(recipe, overrides, config)
        if not has_other_length:
            effects.insert(0, f"the number of steps is divided by {ratio:.4g}")
        changes.append(f"{text}: {', '.join(effects)}" if effects else text)
    return changes


def _scaled_rates(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> list[str]:
    """Returns clauses about the learning rates for another batch size."""
    if "peak_learning_rate" in overrides:
        return []
    if recipe.scaling == "none":
        return [
            "the learning rates are not scaled, since the source has no rule for that"
        ]
    factor = recipe.rate_factor(config.global_batch_size)
    clauses = [f"the learning rates are multiplied by {factor:.4g}"]
    original, schedule = recipe.phases[0].schedule, config.phases[0].schedule
    if (
        original
        and schedule
        and not original.init_value_scales
        and "base_learning_rate" not in overrides
    ):
        clauses.append(f"except for that of step 0, which is {schedule.init_value:.4g}")
    return clauses


def _of_normalization(recipe: Recipe, config: Config, num_ranks: int) -> list[str]:
    size = config.global_batch_size // num_ranks // config.accumulation_steps
    if recipe.rank_batch_size in (0, size):
        return []
    return [
        f"the statistics of batch normalization are over {size:,} examples, the"
        f" micro-batch of a rank, instead of {recipe.rank_batch_size:,}"
    ]


def _of_length(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> list[str]:
    scale = resolve.length_scale(recipe, overrides, config.steps_per_epoch)
    if abs(scale - 1) <= 1e-3:
        return []
    text = f"{scale:.4g} times the length of the recipe"
    (*others, last) = recipe.phases
    if others:
        return [f"{text}, in each phase and its warmup"]
    is_given = "warmup_steps" in overrides or "warmup_epochs" in overrides
    if last.schedule and last.schedule.warmup_length and not is_given:
        text += "; the warmup keeps its length"
    return [text]


def _of_overrides(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> list[str]:
    changes = [
        f"{name} = {overrides[name]} as given"
        f"{_consequence(recipe, overrides, config, name)}"
        for name in resolve.RATE_SETTINGS
        if name in overrides
    ]
    # The size of the images is a setting of the phases, and one of evaluation.
    originals = [
        *((name, getattr(recipe.phases[0], name)) for name in resolve.PHASE_SETTINGS),
        *((name, getattr(recipe, name)) for name in _COMPARED),
    ]
    for name, original in originals:
        if original is None or (value := overrides.get(name, original)) == original:
            continue
        consequence = _consequence(recipe, overrides, config, name)
        changes.append(f"{name} = {value} as given instead of {original}{consequence}")
    return changes


def _consequence(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config, name: str
) -> str:
    """Returns a clause about what else an override changes, or what to change too."""
    original, schedule = recipe.phases[0].schedule, config.phases[0].schedule
    if name == "base_learning_rate" and schedule:
        text = ""
        if "peak_learning_rate" not in overrides:
            text = ": the peak learning rate stays"
            if original and original.init_value and overrides[name]:
                text = (
                    ": the peak learning rate changes in proportion, to"
                    f" {schedule.peak_value:.4g}"
                )
        if not schedule.warmup_length:
            text += "; it is not used, since there is no warmup"
        return text
    if name == "peak_learning_rate" and "base_learning_rate" not in overrides:
        is_flat = schedule and schedule.init_value == schedule.peak_value
        if original and schedule and schedule.warmup_length and is_flat:
            return (
                ": the learning rate of step 0 is lowered to it too, since the rate"
                " can't fall in a warmup"
            )
        return ""
    if name == "optimizer" and "peak_learning_rate" not in overrides:
        text = (
            ": the learning rates are not adjusted, so retune them for this optimizer"
        )
        is_of_lars = recipe.learning_rate_in_velocity and not recipe.nesterov
        if overrides[name] == "lars" and not is_of_lars:
            text += (
                "; neither is the form of the momentum (LARS's source has momentum"
                " without Nesterov and with the learning rate in the velocity)"
            )
        if overrides[name] == "lars" and config.decay_batch_norm:
            text += "; biases and batch normalization's parameters no longer decay"
        if overrides[name] == "muon":
            text += (
                "; convolutions no longer decay, and have the momentum"
                f" {config.muon_momentum:g} (muon_momentum)"
            )
        return text
    return ""
