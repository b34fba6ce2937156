"""The named recipes."""

from collections.abc import Mapping

from resnet.base.errors import UserError
from resnet.config.recipe import Recipe
from resnet.config.recipes import (
    cifar10,
    digits,
    finetune,
    imagenet,
    imagenet_few_epochs,
    imagenet_lars,
    imagenette,
    inception,
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *imagenet.RECIPES,
        *imagenet_lars.RECIPES,
        *imagenet_few_epochs.RECIPES,
        *imagenette.RECIPES,
        *finetune.RECIPES,
        *cifar10.RECIPES,
        *inception.RECIPES,
        *digits.RECIPES,
    )
}


def get(name: str, recipes: Mapping[str, Recipe] = RECIPES) -> Recipe:
    """Returns the recipe of that name.

    Raises:
        UserError: If there is no such recipe; the sentence lists the known names.
    """
    if name not in recipes:
        raise UserError(
            f"expected a recipe among {', '.join(sorted(recipes))}, or a recipe file,"
            f" *.json; got {name!r}"
        )
    return recipes[name]
