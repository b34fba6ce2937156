"""Recipes as they were in earlier versions, so that runs begun with them can resume."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from resnet.base.errors import UserError
from resnet.config import json_file
from resnet.config.config import Config, with_partly_decoded_crops
from resnet.config.recipe import Recipe
from resnet.config.recipes import cifar10, imagenet, imagenet_lars, imagenette, registry
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule


def _with_crops_of_april_2018(recipe: Recipe) -> Recipe:
    (phase,) = recipe.phases
    return dataclasses.replace(
        recipe,
        phases=(dataclasses.replace(phase, augmentation="random_resized_crop"),),
        eval_crop="crop_then_resize",
    )


def _as_the_tpu_recipe(recipe: Recipe) -> Recipe:
    return dataclasses.replace(
        recipe, eval_crop="crop_then_resize", zero_last_gamma=True
    )


def _as_the_other_networks(recipe: Recipe) -> Recipe:
    return dataclasses.replace(
        recipe,
        initialization=imagenet.TPU_90EP_24K.initialization,
        decay_batch_norm=imagenet.TPU_90EP_24K.decay_batch_norm,
        channel_mean=imagenet.TPU_90EP_24K.channel_mean,
        channel_stddev=imagenet.TPU_90EP_24K.channel_stddev,
    )


def _with_resnet50d_and_lars(recipe: Recipe) -> Recipe:
    first, *others = (
        dataclasses.replace(phase, layer_rates="") for phase in recipe.phases
    )
    schedule = Schedule(
        init_value=0.005,
        init_value_scales=False,
        peak_value=0.05,
        warmup_length=1,
        decay="cosine",
    )
    return dataclasses.replace(
        recipe,
        model="resnet50d",
        global_batch_size=32,
        phases=(dataclasses.replace(first, schedule=schedule), *others),
        optimizer="lars",
        trust_coefficient=0.02,
        ema_decay=0.998,
        scaling="linear",
    )


def _of_16_epochs(recipe: Recipe) -> Recipe:
    lengths = ((6, 96), (5, 112), (5, 128))
    phases = (
        dataclasses.replace(
            phase, epochs=epochs, image_size=image_size, name=f"{image_size}_px"
        )
        for phase, (epochs, image_size) in zip(recipe.phases, lengths, strict=True)
    )
    return dataclasses.replace(
        recipe, image_size=128, blur_pool="none", phases=tuple(phases)
    )


_LARS_ON_IMAGENETTE = _with_resnet50d_and_lars(imagenette.IMAGENETTE_BEST)

# The recipes whose values have changed, as they were before; the latest first.
RECIPES = (
    _with_crops_of_april_2018(imagenet.TPU_90EP_24K),
    _with_crops_of_april_2018(imagenet.TPU_90EP_8K),
    dataclasses.replace(imagenet.GOYAL_90EP_8K, learning_rate_in_velocity=True),
    _as_the_tpu_recipe(imagenet_lars.LARS_40EP_4K),
    _as_the_tpu_recipe(imagenet_lars.LARS_42EP_8K),
    _as_the_tpu_recipe(imagenet_lars.LARS_45EP_13K),
    _as_the_tpu_recipe(imagenet_lars.LARS_56EP_32K),
    _as_the_other_networks(cifar10.CIFAR10),
    _LARS_ON_IMAGENETTE,
    _of_16_epochs(_LARS_ON_IMAGENETTE),
    dataclasses.replace(cifar10.AIRBENCH94, name=cifar10.CIFAR10_94.name),
)


def possible_configs(
    recipe: str,
    overrides: Mapping[str, Any],
    num_train_examples: int,
    class_names: tuple[str, ...],
) -> list[Config]:
    """Returns the settings of a command: the present ones, then those it had earlier.

    Args:
        recipe: The name of a recipe, or the path of a recipe file.
        overrides: The values of the overridden settings, as `resolve` takes them.
        num_train_examples: The number of training examples of the data set.
        class_names: The names of the classes, in the order of the labels.

    Raises:
        UserError: If there is no such recipe, or a setting is wrong.
    """
    now = json_file.get(recipe)
    configs = [resolve(now, overrides, num_train_examples, class_names)]
    for earlier in RECIPES:
        # What the command asks for may not fit the recipe as it was earlier. Then no
        # run was begun with it.
        with contextlib.suppress(UserError):
            before = json_file.get(recipe, {**registry.RECIPES, earlier.name: earlier})
            if before != now:
                configs.append(
                    resolve(before, overrides, num_train_examples, class_names)
                )
    configs += map(with_partly_decoded_crops, list(configs))
    return [
        config for index, config in enumerate(configs) if config not in configs[:index]
    ]
