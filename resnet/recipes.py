"""The named recipes."""

from data_prep.errors import UserError
from resnet import (
    cifar10_recipes,
    digits_recipes,
    imagenet_recipes,
    imagenette_recipes,
)
from resnet.recipe import Recipe

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *imagenet_recipes.RECIPES,
        *imagenette_recipes.RECIPES,
        *cifar10_recipes.RECIPES,
        *digits_recipes.RECIPES,
    )
}


def get(name: str) -> Recipe:
    """Returns the recipe of that name.

    Raises:
        UserError: If there is no such recipe, naming those that there are.
    """
    if name not in RECIPES:
        raise UserError(
            f"expected a recipe among {', '.join(sorted(RECIPES))}, or a recipe file,"
            f" *.json; got {name!r}"
        )
    return RECIPES[name]
