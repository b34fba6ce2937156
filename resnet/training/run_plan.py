"""What a run would do, told before it starts, and what it reads."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from data_prep.records import manifest
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.checkpoint.weight_formats import files as weight_files
from resnet.config import explain
from resnet.config.config import Config, Derived
from resnet.config.recipe import Recipe
from resnet.config.recipes import own
from resnet.config.resolve import resolve
from resnet.config.rules import check_ranks, check_start
from resnet.exchange import plan as exchange_plan
from resnet.metrics import figure
from resnet.runtime import startup


def print_plan(
    recipe: Recipe,
    overrides: Mapping[str, Any],
    data_dir: str,
    num_ranks: int,
    plot_file: str,
    is_chosen: bool = True,
) -> None:
    """Prints what a run would do, and draws it to `plot_file`, unless that is empty.

    Without a data set, the numbers are those of the recipe's. If the recipe isn't
    chosen but the default, that for the data set is named.

    Raises:
        UserError: If the settings of the run are wrong.
    """
    num_examples = recipe.num_train_examples
    class_names: tuple[str, ...] = ()
    multi_label = False
    if data_dir:
        contents = manifest.load(data_dir, "train").manifest
        recipe = fitted(recipe, contents)
        num_examples = contents.splits["train"].num_examples
        class_names, multi_label = contents.class_names, contents.multi_label
    own.require_fitted(recipe)
    config = resolve(recipe, overrides, num_examples, class_names, multi_label)
    if data_dir:
        splits_to_read(config, contents, says_what_lacks=True)
    if config.initial_weights:
        weight_files.kind_of(pathlib.Path(config.initial_weights))
    derived = Derived(config, explain.num_parts(config, num_ranks))
    if data_dir:
        check_start(recipe, config, derived.num_parts)
        if not is_chosen:
            advise_recipe(contents)
    else:  # Nothing is to start yet.
        check_ranks(config, derived.num_parts)
    if plot_file:
        drawn = figure.schedule(derived)
        figure.write(drawn, pathlib.Path(plot_file), "--explain_plot")
    exchange = ""
    if config.compress != "none":
        exchange = _describe_exchange(config, num_ranks)
    print_result(explain.describe_run(recipe, overrides, derived, exchange))


def fitted(recipe: Recipe, contents: manifest.Manifest) -> Recipe:
    """Returns the recipe for a data set, which `own` follows from."""
    num_images = contents.splits["train"].num_examples
    return own.fitted(
        recipe, num_images, len(contents.class_names), contents.median_side
    )


def advise_recipe(contents: manifest.Manifest) -> None:
    """Names the recipe for a data set that the one without --recipe is not for."""
    if name := manifest.fitting_recipe(contents):
        logging.warning(
            "without --recipe the settings are those for ImageNet, and the data set"
            " has %s training images: --recipe=%s fits it",
            f"{contents.splits['train'].num_examples:,}",
            name,
        )


def _describe_exchange(config: Config, num_ranks: int) -> str:
    """Returns what each rank sends of its gradients. Imports TensorFlow."""
    startup.import_tensorflow()
    from resnet.optim.train_state import build_model

    # The precision that "auto" stands for makes no difference here.
    model = build_model(dataclasses.replace(config, precision="float32"))
    shapes = [variable.shape for variable in model.trainable_variables]
    text = exchange_plan.describe(config, shapes, num_ranks)
    return f"with {config.num_classes:,} classes, {text}"


def splits_to_read(
    config: Config, contents: manifest.Manifest, says_what_lacks: bool
) -> list[str]:
    """Returns the splits of the data set that the run needs; warns without validation.

    Raises:
        UserError: If --eval_every is set, but there is no validation split.
    """
    if config.mode == "train":
        return ["train"]
    if "validation" in contents.splits:
        return ["train", "validation"]
    if config.eval_every:
        raise UserError(
            f"--eval_every needs a validation split; this data set has"
            f" {manifest.NO_VALIDATION}, or leave the flag out."
        )
    if says_what_lacks:
        logging.warning("the data set has %s", manifest.NO_VALIDATION)
    return ["train"]
