"""The named recipes, data only: one file a source or data set."""

from resnet.config.recipes import (
    cifar10,
    digits,
    imagenet,
    imagenet_few_epochs,
    imagenet_lars,
    imagenette,
    inception,
    own,
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *imagenet.RECIPES,
        *imagenet_lars.RECIPES,
        *imagenet_few_epochs.RECIPES,
        *imagenette.RECIPES,
        *cifar10.RECIPES,
        *inception.RECIPES,
        *digits.RECIPES,
        *own.RECIPES,
    )
}
