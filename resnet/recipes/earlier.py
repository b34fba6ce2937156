"""What recipes were in earlier versions: a run that was begun with one resumes so."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resnet.config.config import Config
from resnet.config.resolve import resolve
from resnet.recipes import imagenet, json_file, registry

# The recipes whose values have changed, as they were before, by name.
RECIPES = {
    recipe.name: recipe
    for recipe in (
        dataclasses.replace(imagenet.GOYAL_90EP_8K, learning_rate_in_velocity=True),
    )
}


def meanings(
    recipe: str,
    overrides: Mapping[str, Any],
    num_train_examples: int,
    class_names: tuple[str, ...],
) -> list[Config]:
    """Returns the settings that a command means now, and then those that it has meant.

    Args:
        recipe: The name of a recipe, or the path of a recipe file.
        overrides: As `resolve` takes them.
        num_train_examples: The number of training examples of the data set.
        class_names: The names of the classes, in the order of the labels.

    Raises:
        UserError: If there is no such recipe, or a setting is wrong.
    """
    now = json_file.get(recipe)
    before = json_file.get(recipe, {**registry.RECIPES, **RECIPES})
    return [
        resolve(one, overrides, num_train_examples, class_names)
        for one in ([now] if before == now else [now, before])
    ]
