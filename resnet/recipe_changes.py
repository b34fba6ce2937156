"""What a run changes of its recipe's numbers, in sentences. Needs no TensorFlow."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resnet import scaling
from resnet.config import Config
from resnet.recipe import Recipe

_OF_RECIPE = [
    field for field in dataclasses.fields(Recipe) if field.name != "global_batch_size"
]


def of_run(
    recipe: Recipe, given: Mapping[str, Any], config: Config, num_ranks: int
) -> list[str]:
    """Returns what is other than in the recipe, a sentence each.

    Args:
        recipe: The recipe.
        given: What was not to be the recipe's, as `config.resolve` takes it.
        config: What the two became.
        num_ranks: Of the run.
    """
    return [
        *_of_data_and_batch(recipe, given, config),
        *_of_normalization(recipe, config, num_ranks),
        *_of_length(recipe, given, config),
        *_of_what_is_given(recipe, given, config),
    ]


def _of_data_and_batch(
    recipe: Recipe, given: Mapping[str, Any], config: Config
) -> list[str]:
    found = []
    if config.num_train_examples != recipe.num_train_examples:
        found.append(
            f"{config.num_train_examples:,} training examples instead of"
            f" {recipe.num_train_examples:,}: lengths are those of the recipe in epochs"
        )
    if config.global_batch_size != recipe.global_batch_size:
        share = config.global_batch_size / recipe.global_batch_size
        found.append(
            f"a global batch of {config.global_batch_size:,} instead of"
            f" {recipe.global_batch_size:,}: the steps are divided by"
            f" {share:.4g}{_scaled_rates(recipe, given, config)}"
        )
    return found


def _scaled_rates(recipe: Recipe, given: Mapping[str, Any], config: Config) -> str:
    """Returns what another batch does to the learning rates that aren't given."""
    if "peak_learning_rate" in given:
        return ""
    if recipe.scaling == "none":
        return ", the learning rates stay, since the source has no rule for them"
    factor = scaling.rate_factor(recipe, config.global_batch_size)
    text = f", the learning rates are multiplied by {factor:.4g}"
    rates, curve = recipe.phases[0].rates, config.phases[0].curve
    if rates and curve and not rates.start_scales and "base_learning_rate" not in given:
        text += f", but for that of step 0, which is {curve.start:.4g}"
    return text


def _of_normalization(recipe: Recipe, config: Config, num_ranks: int) -> list[str]:
    size = config.global_batch_size // num_ranks // config.accumulation_steps
    if recipe.rank_batch_size in (0, size):
        return []
    return [
        f"batch normalization is over {size:,} examples, what a rank computes at a"
        f" time, instead of {recipe.rank_batch_size:,}"
    ]


def _of_length(recipe: Recipe, given: Mapping[str, Any], config: Config) -> list[str]:
    steps_per_epoch = config.num_train_examples / config.global_batch_size
    stretch = scaling.stretch_of(recipe, given, steps_per_epoch)
    if abs(stretch - 1) <= 1e-3:
        return []
    text = f"{stretch:.4g} times as long as the recipe"
    (*others, last) = recipe.phases
    if others:
        return [f"{text}, each phase and its warm-up alike"]
    is_given = "warmup_steps" in given or "warmup_epochs" in given
    if last.rates and last.rates.warmup_epochs and not is_given:
        text += "; the warm-up stays"
    return [text]


def _of_what_is_given(
    recipe: Recipe, given: Mapping[str, Any], config: Config
) -> list[str]:
    found = [
        f"{name} = {given[name]}, given{_and_so(recipe, given, config, name)}"
        for name in scaling.RATE_SETTINGS
        if name in given
    ]
    # The size of the images is one of the phases, and one of evaluation.
    olds = [
        *((name, getattr(recipe.phases[0], name)) for name in scaling.PHASE_SETTINGS),
        *((field.name, getattr(recipe, field.name)) for field in _OF_RECIPE),
    ]
    for name, old in olds:
        if old is not None and (value := given.get(name, old)) != old:
            also = _and_so(recipe, given, config, name)
            found.append(f"{name} = {value}, given, instead of {old}{also}")
    return found


def _and_so(recipe: Recipe, given: Mapping[str, Any], config: Config, name: str) -> str:
    """Returns what else a setting that is given changes, or should."""
    rates, curve = recipe.phases[0].rates, config.phases[0].curve
    if name == "base_learning_rate" and curve:
        text = ""
        if "peak_learning_rate" not in given:
            text = ": the peak stays"
            if rates and rates.start and given[name]:
                text = f": the peak is changed in proportion, to {curve.peak:.4g}"
        if not curve.warmup_steps:
            text += "; there is no warm-up that begins with it"
        return text
    if name == "peak_learning_rate" and "base_learning_rate" not in given:
        if rates and curve and curve.warmup_steps and curve.start == curve.peak:
            return ": the warm-up begins with it too, since it doesn't fall"
        return ""
    if name == "optimizer" and "peak_learning_rate" not in given:
        text = ": the rates stay, which are others with another optimizer"
        is_of_lars = recipe.momentum_correction and not recipe.nesterov
        if given[name] == "lars" and not is_of_lars:
            text += (
                ", and so does the form of the momentum, which LARS's source has"
                " without Nesterov's and with the rates in the velocity"
            )
        return text
    return ""
