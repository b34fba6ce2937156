"""Recipes in files of their own, as JSON.

{"based_on": "imagenette", "name": "mine", "phases": [{"epochs": 16, "mixup": 0.2,
 "rates": {"peak": 0.05, "warmup_epochs": 1, "decay": "cosine"}}]}

The fields are those of `recipe.Recipe`, `recipe.RecipePhase` and `recipe.Rates`. What
isn't there is that of the recipe it is based on; without one, what `recipe` says. The
phases are replaced as a whole. `train_epochs`, if a file states it, is what the lengths
of its phases must add up to.
"""

import dataclasses
import itertools
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from data_prep.errors import UserError
from resnet import recipes
from resnet.recipe import SCALINGS, Rates, Recipe, RecipePhase

_Part = TypeVar("_Part", Recipe, RecipePhase, Rates)
_MOST_EPOCHS = 1e6
_MOST_EXAMPLES = 2**31
# Fields of a file that aren't a recipe's.
_OF_FILES = ("based_on", "train_epochs")
# How far lengths may be from the total that a file names, in epochs.
_TOLERANCE = 1e-3


def get(name: str) -> Recipe:
    """Returns the recipe of that name, or of the file of that name.

    Raises:
        UserError: If there is neither, or the file isn't a recipe.
    """
    return read(Path(name)) if name.endswith(".json") else recipes.get(name)


def read(path: Path) -> Recipe:
    """Returns the recipe in a file.

    Raises:
        UserError: If it isn't one, naming the field that isn't what it must be.
    """
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict):
            raise UserError("it must be one object, {...}")
        recipe = _recipe(values)
        _check(recipe, values)
    except OSError as error:
        raise UserError(f"expected a recipe file: {error}") from error
    except UserError as error:  # Itself a ValueError.
        raise UserError(f"{path} is no recipe: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must be JSON; it isn't: {error}") from error
    return recipe


def _recipe(values: dict[str, Any]) -> Recipe:
    values = {name: one for name, one in values.items() if name != "train_epochs"}
    base = values.pop("based_on", None)
    if base is None:
        return _make(Recipe, values, "the recipe")
    if "name" not in values:
        raise UserError('it needs a "name" of its own')
    base = _converted(str, base, "'based_on' of the recipe")
    if base not in recipes.RECIPES:
        raise UserError(
            f"it can be based_on {', '.join(sorted(recipes.RECIPES))}; got {base!r}"
        )
    old = {
        field.name: getattr(recipes.RECIPES[base], field.name)
        for field in dataclasses.fields(Recipe)
    }
    # What is said of the source is said of its own numbers.
    old.update(source=f"{base}, changed", published="", deviations=())
    return _make(Recipe, {**old, **values}, "the recipe")


def _make(kind: type[_Part], values: dict[str, Any], where: str) -> _Part:
    """Returns a value of a dataclass, each field looked at."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(values) - set(fields)):
        known = list(fields)
        if "phases" in fields:
            known += _OF_FILES
        raise UserError(
            f"unknown field {unknown[0]!r} of {where}; known are {', '.join(known)}"
        )
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise UserError(f"{name!r} of {where} is missing")
    hints = typing.get_type_hints(kind)
    return kind(
        **{
            name: _converted(hints[name], value, f"{name!r} of {where}")
            for name, value in values.items()
        }
    )


def _converted(kind: Any, value: Any, where: str) -> Any:
    """Returns a JSON value as one of a field's type."""
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        (kind,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list; got {value!r}")
        item = typing.get_args(kind)[0]
        return tuple(
            _converted(item, one, f"number {number} of {where}")
            for number, one in enumerate(value, start=1)
        )
    if kind in (Rates, RecipePhase):
        if isinstance(value, kind):  # Of the recipe that it is based on.
            return value
        if not isinstance(value, dict):
            raise UserError(f"{where} must be an object; got {value!r}")
        return _make(kind, value, where)
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (
        isinstance(value, bool) and kind is not bool
    ):
        words = {int: "a whole number", float: "a number", str: "text", bool: "a bool"}
        raise UserError(f"{where} must be {words[kind]}; got {value!r}")
    if isinstance(value, str) and not value.isprintable():
        raise UserError(f"{where} must be a line of text; got {value!r}")
    if kind is float and not math.isfinite(_as_float(value)):
        # JSON's NaN and Infinity, and whole numbers beyond all floats.
        raise UserError(f"{where} must be a number; got {_short(value)}")
    return kind(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _short(value: float) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _check(recipe: Recipe, values: dict[str, Any]) -> None:
    """Refuses a recipe whose parts don't fit into one another."""
    if not recipe.phases:
        raise UserError("it needs at least one phase")
    if recipe.phases[0].rates is None:
        raise UserError("its first phase needs rates: there are none to go on along")
    if recipe.scaling not in SCALINGS:
        raise UserError(
            f"scaling must be one of {', '.join(SCALINGS)}; got {recipe.scaling!r}"
        )
    for what, name in (
        ("name", recipe.name),
        *(("name of a phase", part.name) for part in recipe.phases),
    ):
        if not name.strip():
            raise UserError(
                f"the {what} must be a word or a line of them; got {name!r}"
            )
    if recipe.name in recipes.RECIPES:
        raise UserError(f"its name must be its own; {recipe.name} is another recipe's")
    for name, lowest in (
        ("global_batch_size", 1),
        ("num_train_examples", 1),
        ("image_size", 1),
        ("rank_batch_size", 0),
    ):
        if not lowest <= (value := getattr(recipe, name)) <= _MOST_EXAMPLES:
            raise UserError(
                f"{name} must be from {lowest} to {_MOST_EXAMPLES}; got {_short(value)}"
            )
    for index, part in enumerate(recipe.phases):
        if not 0 < part.epochs < _MOST_EPOCHS:
            raise UserError(
                f"the epochs of phase {part.name!r} must be more than 0; got"
                f" {part.epochs}"
            )
        if part.rates is not None:
            going_on = itertools.takewhile(
                lambda one: one.rates is None, recipe.phases[index + 1 :]
            )
            epochs = part.epochs + sum(one.epochs for one in going_on)
            _check_rates(part.rates, part.name, epochs)
    total = sum(part.epochs for part in recipe.phases)
    stated = _converted(float, values.get("train_epochs", total), "'train_epochs'")
    if abs(total - stated) > _TOLERANCE:
        raise UserError(
            f"its phases must add up to the train_epochs that it states, {stated:g};"
            f" they are {total:g} epochs long"
        )


def _check_rates(rates: Rates, name: str, epochs: float) -> None:
    """Refuses rates of a phase, by name, that don't fit the epochs they are for."""
    for what, values in (
        ("warmup_epochs", (rates.warmup_epochs,)),
        ("decay_epochs", (rates.decay_epochs or 0.0,)),
        ("drop_epochs", rates.drop_epochs),
    ):
        for value in values:
            if not 0 <= value < _MOST_EPOCHS:
                raise UserError(
                    f"{what} of phase {name!r} must be at least 0, and below"
                    f" {_MOST_EPOCHS:g}; got {value:g}"
                )
    if (rates.decay == "steps") != bool(rates.drop_epochs):
        raise UserError(
            f"the rates of phase {name!r} must have drop_epochs if their decay is"
            f' "steps", and only then; got decay {rates.decay!r} and'
            f" {len(rates.drop_epochs)} drop_epochs"
        )
    if rates.end > rates.peak:
        raise UserError(
            f"the end of the rates of phase {name!r} must be at most their peak; got"
            f" {rates.end} and {rates.peak}"
        )
    if rates.warmup_epochs and rates.start > rates.peak:
        raise UserError(
            f"the start of the rates of phase {name!r} must be at most their peak; got"
            f" {rates.start} and {rates.peak}"
        )
    if (last := max(rates.drop_epochs, default=0)) >= epochs:
        raise UserError(
            f"the drop_epochs of phase {name!r} must lie within the {epochs:g} epochs"
            f" of its rates; got {last:g}"
        )
