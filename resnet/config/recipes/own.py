"""The recipe for a user's own images, which follows from their number and their size.

Its rates and its regularization are those of the recipes for ResNet-9 on CIFAR-10 and
for Imagenette, whose lengths and sizes it has for as many images of their size.
"""

import dataclasses
import math
from collections.abc import Iterator

from resnet.base.errors import UserError
from resnet.config.recipe import IMAGENET_MEAN, IMAGENET_STDDEV, Recipe
from resnet.config.recipes.cifar10 import RESNET9
from resnet.config.recipes.imagenette import IMAGENETTE_BEST, scaled_phase

NAME = "own"
_SMALL_SIDE = 64  # ResNet-9 has a stride of 8 and is for 32 pixels, ResNet-D of 32.
_DEEP_FROM = 4_000  # The images from which ResNet-34-D replaces ResNet-18-D.
_LEAST_STEPS = 28  # In an epoch, where the batch needn't be smaller than 8 for them.
_SMALLEST_BATCH, _LARGEST_BATCH = 8, 64
_LEAST_EPOCHS, _MOST_EPOCHS = 20, 200
_IMAGES_OF_LEAST_EPOCHS = 10_000  # About those of Imagenette.
_FEW_PER_CLASS = 50


def batch_size_of(num_images: int) -> int:
    """Returns a power of two from 8 to 64 that leaves enough steps in an epoch.

    Fewer than 8 images are in one batch as far as they fit into a power of two.
    """
    most = max(num_images // _LEAST_STEPS, _SMALLEST_BATCH)
    return int(2 ** math.floor(math.log2(min(most, _LARGEST_BATCH, num_images))))


def epochs_of(num_images: int) -> int:
    """Returns the length in epochs, which falls with the root of the images."""
    epochs = _LEAST_EPOCHS * math.sqrt(_IMAGES_OF_LEAST_EPOCHS / num_images)
    return round(max(_LEAST_EPOCHS, min(epochs, _MOST_EPOCHS)))


def recipe_for(num_images: int, num_classes: int, median_side: int) -> Recipe:
    """Returns the recipe for so many training images of so many pixels."""
    base, stride = RESNET9, 8
    if median_side >= _SMALL_SIDE:
        base, stride = IMAGENETTE_BEST, 32
    size = max(32, min(_multiple(median_side, stride), IMAGENETTE_BEST.image_size))
    batch, epochs = batch_size_of(num_images), epochs_of(num_images)
    phases = []
    for phase in base.phases:
        scaled = scaled_phase(phase, epochs / base.epochs, base.rate_factor(batch))
        side = (phase.image_size or base.image_size) * size / base.image_size
        side = _multiple(side, min(stride, 16))  # Finer: phases differ.
        phases.append(dataclasses.replace(scaled, name=f"{side}_px", image_size=side))
    is_shallow = base is IMAGENETTE_BEST and num_images < _DEEP_FROM
    recipe = dataclasses.replace(
        base,
        name=NAME,
        source=f"this project: for {num_images:,} images of {num_classes:,} classes",
        model="resnet18d" if is_shallow else base.model,
        image_size=size,
        global_batch_size=batch,
        num_train_examples=num_images,
        num_classes=num_classes,
        phases=tuple(phases),
        channel_mean=IMAGENET_MEAN,
        channel_stddev=IMAGENET_STDDEV,
        rank_batch_size=0,
        published="",
        deviations=(),
    )
    reasons = tuple(_reasons(recipe, num_classes, median_side))
    return dataclasses.replace(recipe, reasons=reasons)


def fitted(
    recipe: Recipe, num_images: int, num_classes: int, median_side: int
) -> Recipe:
    """Returns the recipe of a data set in place of the one for a usual set."""
    if recipe.name != NAME:
        return recipe
    if not median_side:
        raise UserError(
            f"--recipe={NAME} needs the size of the images, and the manifest of this"
            " data set has no median_side. Convert the images again, or take another"
            " recipe."
        )
    return recipe_for(num_images, num_classes, median_side)


def _multiple(number: float, of: int) -> int:
    return max(math.floor(number / of + 0.5), 2) * of


def _reasons(recipe: Recipe, num_classes: int, median_side: int) -> Iterator[str]:
    images = f"{recipe.num_train_examples:,} images"
    last = recipe.phases[-1].image_size or recipe.image_size
    text = f"{last} px at the end of the training: the median of the images' shorter"
    text += f" sides is {median_side:,}"
    if median_side > IMAGENETTE_BEST.image_size:
        text += f", and the recipe uses at most {last}"
    yield text
    yield (
        f"{recipe.model}: resnet9 is for less than {_SMALL_SIDE} pixels, resnet18d for"
        f" more and less than {_DEEP_FROM:,} images, resnet34d for more of both"
    )
    yield (
        f"batch {recipe.global_batch_size}: {images} / {_LEAST_STEPS} steps per epoch"
        f" at least, within {_SMALLEST_BATCH} to {_LARGEST_BATCH}"
    )
    yield (
        f"{recipe.epochs:.0f} epochs: {_LEAST_EPOCHS} * ({_IMAGES_OF_LEAST_EPOCHS:,} /"
        f" {images})^0.5, within {_LEAST_EPOCHS} to {_MOST_EPOCHS}"
    )
    yield (
        f"{recipe.phases[0].augmentation}: images are mirrored, too; for text or"
        " digits, which must not be, add --augmentation=random_shift"
    )
    if recipe.num_train_examples < _FEW_PER_CLASS * num_classes:
        yield (
            f"{images} of {num_classes:,} classes are few to train from scratch: with"
            " trained weights, --recipe=finetune needs fewer"
        )


# Of a usual set, for what is asked without one.
OWN = recipe_for(num_images=10_000, num_classes=10, median_side=224)
RECIPES = (OWN,)


def require_fitted(recipe: Recipe) -> None:
    """Raises UserError if the recipe is `own`, and hasn't been fitted to a data set."""
    if recipe is OWN:
        raise UserError(
            f"--recipe={NAME} follows from the data set: it needs a --data_dir that can"
            " be read here, with training images."
        )
