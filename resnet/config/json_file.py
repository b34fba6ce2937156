"""Reads recipes from JSON files.

{"based_on": "imagenette", "name": "mine", "phases": [{"epochs": 16, "mixup": 0.2,
 "schedule": {"peak_value": 0.05, "warmup_length": 1, "decay": "cosine"}}]}

The fields are those of `recipe.Recipe`, `recipe.RecipePhase` and `schedules.Schedule`,
with all times in epochs. A field that is left out has the value of the recipe that the
file is based on or, without one, its default. The phases are replaced as a whole.
`train_epochs`, if a file states it, is the sum of the lengths of its phases.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resnet.base.dataclass_json import converted, from_json, shortened
from resnet.base.errors import UserError
from resnet.base.settings import LARGEST_COUNT
from resnet.config.recipe import SCALINGS, Recipe, RecipePhase
from resnet.config.recipes import registry
from resnet.config.schedules import Schedule

_MOST_EPOCHS = 1e6
# Fields of a file that aren't fields of a `Recipe`.
_FIELDS_OF_FILES = ("based_on", "train_epochs")
_TOLERANCE = 1e-3  # Tolerance of the phases' total length, in epochs.


def get(name: str, recipes: Mapping[str, Recipe] = registry.RECIPES) -> Recipe:
    """Returns the recipe of a name or, if the name ends in .json, that in the file.

    Args:
        name: The name of a recipe, or the path of a file.
        recipes: The named recipes, which a file can be based on.

    Raises:
        UserError: If there is no such recipe, or the file doesn't hold a recipe.
    """
    if name.endswith(".json"):
        return read(Path(name), recipes)
    return registry.get(name, recipes)


def read(path: Path, recipes: Mapping[str, Recipe] = registry.RECIPES) -> Recipe:
    """Returns the recipe in a file.

    Args:
        path: The file.
        recipes: The named recipes, which the file can be based on.

    Raises:
        UserError: If the file doesn't hold a recipe, naming the field that is wrong.
    """
    try:
        values = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=_without_duplicates
        )
        if not isinstance(values, dict):
            raise UserError("it must be one object, {...}")
        recipe = _recipe(values, recipes)
        _check(recipe, values)
    except OSError as error:
        raise UserError(
            f"expected a recipe file; {path}: {error.strerror}. Correct --recipe."
        ) from error
    except UserError as error:  # Itself a ValueError.
        raise UserError(f"{path} is not a recipe: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must be JSON; it isn't: {error}") from error
    return recipe


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a JSON object.

    Raises:
        UserError: If a field is given twice, of which JSON would keep the last.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"each field must be given once; {twice!r} is given twice")
    return values


def _recipe(values: dict[str, Any], recipes: Mapping[str, Recipe]) -> Recipe:
    values = {name: value for name, value in values.items() if name != "train_epochs"}
    base = values.pop("based_on", None)
    if base is not None:
        if "name" not in values:
            raise UserError('it needs a "name" of its own')
        base = converted(str, base, "'based_on' of the recipe")
        if base not in recipes:
            known = ", ".join(sorted(recipes))
            raise UserError(f"it can be based_on {known}; got {base!r}")
        old = {
            field.name: getattr(recipes[base], field.name)
            for field in dataclasses.fields(Recipe)
        }
        # These three fields describe the source's numbers, which the file changes.
        old.update(source=f"{base}, changed", published="", deviations=())
        values = {**old, **values}
    return from_json(Recipe, values, "the recipe", also_known=_FIELDS_OF_FILES)


def _check(recipe: Recipe, values: dict[str, Any]) -> None:
    """Refuses a recipe whose parts don't fit into one another."""
    if not recipe.phases:
        raise UserError("it needs at least one phase")
    if recipe.phases[0].schedule is None:
        raise UserError(
            "its first phase needs a schedule: there is none before to continue"
        )
    if recipe.scaling not in SCALINGS:
        raise UserError(
            f"scaling must be one of {', '.join(SCALINGS)}; got {recipe.scaling!r}"
        )
    _check_texts(recipe)
    for name, lowest in (
        ("global_batch_size", 1),
        ("num_train_examples", 1),
        ("image_size", 1),
        ("rank_batch_size", 0),
    ):
        if not lowest <= (value := getattr(recipe, name)) <= LARGEST_COUNT:
            raise UserError(
                f"{name} must be from {lowest} to {LARGEST_COUNT}; got"
                f" {shortened(repr(value))}"
            )
    for index, phase in enumerate(recipe.phases):
        _check_phase(phase, recipe.phases[index + 1 :])
    stated = converted(
        float, values.get("train_epochs", recipe.epochs), "'train_epochs'"
    )
    if abs(recipe.epochs - stated) > _TOLERANCE:
        raise UserError(
            f"its phases must add up to the train_epochs that it states, {stated:g};"
            f" they are {recipe.epochs:g} epochs long"
        )


def _check_texts(recipe: Recipe) -> None:
    """Refuses names that are taken or empty, and texts with unprintable characters."""
    for what, name in (
        ("name", recipe.name),
        *(("name of a phase", phase.name) for phase in recipe.phases),
    ):
        if not name.strip():
            raise UserError(f"the {what} must not be empty; got {name!r}")
    for what, text in (
        ("name", recipe.name),
        ("source", recipe.source),
        ("published", recipe.published),
        *(("deviations", deviation) for deviation in recipe.deviations),
        *(("name of a phase", phase.name) for phase in recipe.phases),
    ):
        if not text.isprintable():
            raise UserError(
                f"{what!r} of the recipe must be a line of text; got {text!r}"
            )
    if recipe.name in registry.RECIPES:
        raise UserError(f"its name must be its own; {recipe.name} is another recipe's")


def _check_phase(phase: RecipePhase, later: tuple[RecipePhase, ...]) -> None:
    """Refuses a phase without a length, or whose schedule doesn't fit it.

    Args:
        phase: The phase.
        later: The phases after it.
    """
    if not 0 < phase.epochs < _MOST_EPOCHS:
        raise UserError(
            f"the epochs of phase {phase.name!r} must be more than 0; got"
            f" {phase.epochs}"
        )
    if phase.schedule is not None:
        continuing = itertools.takewhile(lambda other: other.schedule is None, later)
        epochs = phase.epochs + sum(other.epochs for other in continuing)
        _check_schedule(phase.schedule, phase.name, epochs)


def _check_schedule(schedule: Schedule, name: str, epochs: float) -> None:
    """Refuses a schedule that contradicts itself or doesn't fit its phases.

    Args:
        schedule: The schedule, in epochs.
        name: The name of the phase, for the sentence of an error.
        epochs: The length of the phases that the schedule is for.
    """
    described = f"the schedule of phase {name!r}"
    for what, values in (
        ("warmup_length", (schedule.warmup_length,)),
        ("decay_end", (schedule.decay_end or 0,)),
        ("boundaries", schedule.boundaries),
    ):
        for value in values:
            if not 0 <= value < _MOST_EPOCHS:
                raise UserError(
                    f"{what} of {described} must be at least 0, and below"
                    f" {_MOST_EPOCHS:g}; got {value:g}"
                )
    if schedule.decay_start:
        raise UserError(
            f"decay_start of {described} must be 0, or left out for the end of the"
            f" warmup; got {schedule.decay_start:g}"
        )
    if (schedule.decay == "steps") != bool(schedule.boundaries):
        raise UserError(
            f'{described} must have boundaries if its decay is "steps", and only then;'
            f" got decay {schedule.decay!r} and {len(schedule.boundaries)} boundaries"
        )
    if schedule.end_value > schedule.peak_value:
        raise UserError(
            f"end_value of {described} must be at most its peak_value; got"
            f" {schedule.end_value} and {schedule.peak_value}"
        )
    if schedule.warmup_length and schedule.init_value > schedule.peak_value:
        raise UserError(
            f"init_value of {described} must be at most its peak_value; got"
            f" {schedule.init_value} and {schedule.peak_value}"
        )
    if (last := max(schedule.boundaries, default=0)) >= epochs:
        raise UserError(
            f"boundaries of {described} must lie within its {epochs:g} epochs; got"
            f" {last:g}"
        )
