"""Reads recipes from JSON files.

{"based_on": "imagenette", "name": "mine", "phases": [{"epochs": 16, "mixup": 0.2,
 "schedule": {"peak_value": 0.05, "warmup_length": 1, "decay": "cosine"}}]}

The fields are those of `recipe.Recipe`, `recipe.RecipePhase` and `schedules.Schedule`,
with all times in epochs. A field that is left out has the value of the recipe that the
file is based on or, without one, its default. The phases are replaced as a whole.
`train_epochs`, if a file states it, is the sum of the lengths of its phases.
"""

import dataclasses
from pathlib import Path
from typing import Any

from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.base.settings import LARGEST_COUNT
from resnet.base.text import shortened
from resnet.config.phases import end_of_schedule
from resnet.config.recipe import SCALINGS, Recipe
from resnet.config.recipes import RECIPES
from resnet.config.schedules import Schedule

_MOST_EPOCHS = 1e6
# Fields of a file that aren't fields of a `Recipe`.
_FIELDS_OF_FILES = ("based_on", "train_epochs")
_TOLERANCE = 1e-3  # Tolerance of the phases' total length, in epochs.


def get(name: str) -> Recipe:
    """Returns the recipe of a name or, if the name ends in .json, that in the file.

    Raises:
        UserError: If there is no such recipe, or the file doesn't hold a recipe.
    """
    if name.endswith(".json"):
        return read(Path(name))
    if name not in RECIPES:
        raise UserError(
            f"expected a recipe among {', '.join(sorted(RECIPES))}, or a recipe file,"
            f" *.json; got {name!r}"
        )
    return RECIPES[name]


def read(path: Path) -> Recipe:
    """Returns the recipe in a file.

    Raises:
        UserError: If the file doesn't hold a recipe, naming the field that is wrong.
    """
    what = "a recipe"
    values = json_file.read(path, None, what, "Correct --recipe.")
    with json_file.naming(str(path), what):
        recipe = _recipe(values)
        _check(recipe, values)
    return recipe


def _recipe(values: dict[str, Any]) -> Recipe:
    values = {name: value for name, value in values.items() if name != "train_epochs"}
    base = values.pop("based_on", None)
    if base is not None:
        if "name" not in values:
            raise UserError('it needs a "name" of its own')
        base = json_file.converted(str, base, "'based_on'")
        if base not in RECIPES:
            known = ", ".join(sorted(RECIPES))
            raise UserError(f"it can be based_on {known}; got {base!r}")
        old = {
            field.name: getattr(RECIPES[base], field.name)
            for field in dataclasses.fields(Recipe)
        }
        # These three fields describe the source's numbers, which the file changes.
        old.update(source=f"{base}, changed", published="", deviations=())
        values = {**old, **values}
    return json_file.instance(Recipe, values, also_known=_FIELDS_OF_FILES)


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
        if not 0 < phase.epochs < _MOST_EPOCHS:
            raise UserError(
                f"the epochs of phase {phase.name!r} must be more than 0; got"
                f" {phase.epochs}"
            )
        if phase.schedule is not None:
            followers = recipe.phases[index : end_of_schedule(recipe.phases, index)]
            epochs = sum(follower.epochs for follower in followers)
            _check_schedule(phase.schedule, phase.name, epochs)
    stated = json_file.converted(
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
            raise UserError(f"{what!r} must be a line of text; got {text!r}")
    if recipe.name in RECIPES:
        raise UserError(f"its name must be its own; {recipe.name} is another recipe's")


def _check_schedule(schedule: Schedule, name: str, epochs: float) -> None:
    """Refuses a schedule that contradicts itself or the epochs that it is for."""
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
