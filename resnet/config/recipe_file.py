"""Reads recipes from JSON files.

{"based_on": "imagenette", "name": "mine", "phases": [{"epochs": 16, "mixup": 0.2,
 "schedule": {"peak_value": 0.05, "warmup_length": 1, "decay": "cosine"}}]}

The fields are those of `recipe.Recipe`, `recipe.RecipePhase` and `schedules.Schedule`,
with all times in epochs. A field that is left out has the value of the recipe that the
file is based on or, without one, its default. The phases are replaced as a whole.
`train_epochs`, if a file states it, is the sum of the lengths of its phases.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resnet.base import commands, json_file, names
from resnet.base.errors import UserError
from resnet.base.settings import problems_of
from resnet.config.phases import end_of_schedule
from resnet.config.recipe import Recipe
from resnet.config.recipes import RECIPES, own
from resnet.config.schedules import Schedule

_FIELDS_OF_FILES = ("based_on", "train_epochs")  # Beside those of a `Recipe`.
_TOLERANCE = 1e-3  # Tolerance of the phases' total length, in epochs.


def get(name: str) -> Recipe:
    """Returns the recipe of a name, or of a file *.json; else there is a UserError."""
    if name.endswith(".json"):
        return read(Path(name))
    if name not in RECIPES:
        sentence = names.unknown("the recipe", name, RECIPES, _list_command())
        raise UserError(f"{sentence} It can also be a recipe file, *.json.")
    return RECIPES[name]


def _list_command() -> str:
    return commands.command("resnet-train", "--list_recipes")


def read(path: Path) -> Recipe:
    """Returns the recipe in a file; a field that is wrong is a UserError."""
    what = "a recipe"
    values = json_file.read(path, dict, what, "Correct --recipe.")
    with json_file.naming(str(path), what):
        recipe = _recipe(values)
        for problem in _problems(recipe, values):
            raise UserError(problem)
    return recipe


def _recipe(values: dict[str, Any]) -> Recipe:
    values = {name: value for name, value in values.items() if name != "train_epochs"}
    base = values.pop("based_on", None)
    if base is not None:
        if "name" not in values:
            raise UserError('it needs a "name" of its own')
        base = json_file.converted(str, base, "'based_on'")
        if base not in RECIPES:
            raise UserError(names.unknown("'based_on'", base, RECIPES, _list_command()))
        if base == own.NAME:
            raise UserError(
                f"it can't be based_on {base}, which follows from a data set; give"
                f" flags beside --recipe={base}"
            )
        # Three fields describe the source's numbers, which the file changes.
        described = {"source": f"{base}, changed", "published": "", "deviations": ()}
        values = {**vars(RECIPES[base]), **described, **values}
    return json_file.instance(Recipe, values, also_known=_FIELDS_OF_FILES)


def _problems(recipe: Recipe, values: dict[str, Any]) -> Iterator[str]:
    """Yields a sentence about each part that is wrong, or doesn't fit the others."""
    if not recipe.phases or recipe.phases[0].schedule is None:
        yield "it needs at least one phase, and its first phase needs a schedule"
    own_names = [recipe.name, *(phase.name for phase in recipe.phases)]
    for text in (*own_names, recipe.source, recipe.published, *recipe.deviations):
        if not text.isprintable():
            yield f"each of its texts must be a line of text; got {text!r}"
    if not all(map(str.strip, own_names)):
        yield f"the names of a recipe and its phases must not be empty; got {own_names}"
    if recipe.name in RECIPES:
        yield f"its name must be its own; {recipe.name} is another recipe's"
    yield from problems_of(recipe, f"the recipe {recipe.name}")
    for index, phase in enumerate(recipe.phases):
        yield from problems_of(phase, f"phase {phase.name!r}")
        if phase.schedule is not None:
            followers = recipe.phases[index : end_of_schedule(recipe.phases, index)]
            epochs = sum(follower.epochs for follower in followers)
            described = f"the schedule of phase {phase.name!r}"
            yield from _problems_of_schedule(phase.schedule, described, epochs)
    what = "'train_epochs'"
    stated = json_file.converted(float, values.get("train_epochs", recipe.epochs), what)
    if abs(recipe.epochs - stated) > _TOLERANCE:
        yield (
            f"its phases must add up to the train_epochs that it states, {stated:g};"
            f" they are {recipe.epochs:g} epochs long"
        )


def _problems_of_schedule(
    schedule: Schedule, described: str, epochs: float
) -> Iterator[str]:
    yield from problems_of(schedule, described)
    if schedule.decay_start:
        yield (
            f"decay_start of {described} must be 0, or left out for the end of the"
            f" warmup; got {schedule.decay_start:g}"
        )
    if (schedule.decay == "steps") != bool(schedule.boundaries):
        yield (
            f'{described} must have boundaries if its decay is "steps", and only then;'
            f" got decay {schedule.decay!r} and {len(schedule.boundaries)} boundaries"
        )
    for name in ["end_value", "init_value"][: 1 + bool(schedule.warmup_length)]:
        if (value := getattr(schedule, name)) > schedule.peak_value:
            yield (
                f"{name} of {described} must be at most its peak_value; got {value} and"
                f" {schedule.peak_value}"
            )
    for boundary in schedule.boundaries:
        if not 0 <= boundary < epochs:
            yield (
                f"boundaries of {described} must lie within its {epochs:g} epochs; got"
                f" {boundary:g}"
            )
