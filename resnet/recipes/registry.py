"""The named recipes."""

from data_prep.errors import UserError
from resnet.config.recipe import Recipe
from resnet.recipes import cifar10, digits, imagenet, imagenette

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *imagenet.RECIPES,
        *imagenette.RECIPES,
        *cifar10.RECIPES,
        *digits.RECIPES,
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
