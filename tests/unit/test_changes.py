import dataclasses
from typing import Any

from resnet.config import changes as recipe_changes
from resnet.config.recipe import Recipe
from resnet.config.recipes import (
    RECIPES,
    cifar10,
    digits,
    imagenet,
    imagenet_lars,
    imagenette,
)
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule

TPU = imagenet.TPU_90EP_24K
COLLAPSE = imagenet.COLLAPSE_72EP_4K
NUM_IMAGENET = 1_281_167


def changes(
    recipe: Recipe,
    batch: int,
    num_train_examples: int,
    num_ranks: int | None = None,
    **given: Any,
) -> list[str]:
    """Returns them for so many ranks, or as many as the source had."""
    given["global_batch_size"] = batch
    config = resolve(recipe, given, num_train_examples, ("a", "b"))
    if num_ranks is None:
        num_ranks = batch // (recipe.rank_batch_size or batch)
    return recipe_changes.describe_changes(recipe, given, config, num_ranks)


def test_of_the_published_run_there_is_nothing_to_say():
    for recipe in RECIPES.values():
        batch, examples = recipe.global_batch_size, recipe.num_train_examples
        assert changes(recipe, batch, examples) == []
    assert changes(TPU, 24_576, NUM_IMAGENET, train_steps=4680) == []


def test_another_data_set_and_batch():
    assert changes(COLLAPSE, 2048, 9469) == [
        "9,469 training examples instead of 1,281,167: lengths stay those of the recipe"
        " in epochs",
        "global batch size 2,048 instead of 4,096: the number of steps is divided by"
        " 0.5, the learning rates are multiplied by 0.5, except for that of step 0,"
        " which"
        " is 0.1",
    ]


def test_a_length_that_is_given_is_not_that_of_the_recipe():
    told = changes(COLLAPSE, 8192, 9469, train_steps=1000)
    assert told[0] == "9,469 training examples instead of 1,281,167"
    rates = "global batch size 8,192 instead of 4,096: the learning rates are"
    assert told[1].startswith(f"{rates} multiplied by 2, except for that of step 0")
    # Nothing follows from the batch if length and learning rate are given.
    given = {"train_steps": 1000, "peak_learning_rate": 0.1}
    text = "global batch size 12,288 instead of 24,576"
    assert text in changes(TPU, 12_288, NUM_IMAGENET, **given)


def test_a_start_that_does_not_scale_is_no_more_than_the_peak():
    # 4.8 / 192 = 0.025.
    change, _ = changes(TPU, 128, NUM_IMAGENET, num_ranks=1)
    assert change.endswith("by 0.005208, except for that of step 0, which is 0.025")


def test_a_start_that_scales_is_no_exception():
    change, _ = changes(cifar10.CIFAR10, 256, 50_000, num_ranks=1)
    assert change.endswith("the learning rates are multiplied by 0.5")


def test_a_peak_that_is_given_is_not_scaled():
    found = changes(TPU, 8192, NUM_IMAGENET, num_ranks=8192, peak_learning_rate=2.5)
    assert found[0] == (
        "global batch size 8,192 instead of 24,576: the number of steps is divided by"
        " 0.3333"
    )
    assert found[-1] == "peak_learning_rate = 2.5 as given"


def test_rates_without_a_rule():
    assert changes(imagenet_lars.LARS_42EP_8K, 4096, NUM_IMAGENET) == [
        "global batch size 4,096 instead of 8,192: the number of steps is divided by"
        " 0.5,"
        " the learning rates are not scaled, since the source has no rule for that"
    ]


def test_rates_by_the_root_of_the_batch():
    (change,) = changes(imagenette.IMAGENETTE_LARS, 16, 9469)
    assert change.endswith("the learning rates are multiplied by 0.5")


def test_other_ranks_and_parts_normalize_over_other_batches():
    assert changes(TPU, 24_576, NUM_IMAGENET, num_ranks=512) == []
    assert changes(TPU, 24_576, NUM_IMAGENET, num_ranks=2, accumulation_steps=96) == [
        "the statistics of batch normalization are over 128 examples, the micro-batch"
        " of"
        " a rank, instead of 48"
    ]
    # Of this project's own recipes none is said to need a number of ranks.
    assert changes(imagenette.IMAGENETTE, 64, 9469, num_ranks=4) == []


def test_another_length_and_what_it_does_to_the_warm_up():
    assert changes(TPU, 24_576, NUM_IMAGENET, train_steps=9360) == [
        "2 times the length of the recipe; the warmup keeps its length"
    ]
    assert changes(COLLAPSE, 4096, NUM_IMAGENET, train_steps=2261) == [
        "0.1 times the length of the recipe, in each phase and its warmup"
    ]
    # 36 of 12 epochs, whatever the batch.
    assert changes(digits.DIGITS, 64, 1437, train_epochs=36.0) == [
        "3 times the length of the recipe; the warmup keeps its length"
    ]


def test_what_is_given():
    given = {"weight_decay": 1e-4, "peak_learning_rate": 2.0, "seed": 3, "mixup": 0.2}
    assert changes(TPU, 24_576, NUM_IMAGENET, **given) == [
        "peak_learning_rate = 2.0 as given",
        "weight_decay = 0.0001 as given instead of 5e-05",
        "mixup = 0.2 as given instead of 0.0",
    ]
    given = {"ema_decay": 0.9, "optimizer": "momentum", "model": "resnet50"}
    lars = imagenet_lars.LARS_40EP_4K
    assert changes(lars, 4096, NUM_IMAGENET, **given) == [
        "optimizer = momentum as given instead of lars: the learning rates are not"
        " adjusted, so retune them for this optimizer",
        "ema_decay = 0.9 as given instead of 0.0",
    ]


def test_what_is_given_as_the_recipe_has_it_is_no_change():
    given = {"momentum": 0.9, "image_size": 224, "mixup": 0.0, "model": "resnet50"}
    assert changes(TPU, 24_576, NUM_IMAGENET, **given) == []


def test_a_size_of_images_may_be_other_than_that_of_evaluation_only():
    smaller = dataclasses.replace(TPU.phases[0], image_size=128)
    recipe = dataclasses.replace(TPU, phases=(smaller,))
    assert changes(recipe, 24_576, NUM_IMAGENET) == []
    assert changes(recipe, 24_576, NUM_IMAGENET, image_size=128) == [
        "image_size = 128 as given instead of 224"
    ]
    assert changes(TPU, 24_576, NUM_IMAGENET, image_size=128) == [
        "image_size = 128 as given instead of 224"
    ]


def test_a_warm_up_that_is_given_does_not_stay():
    assert changes(TPU, 24_576, NUM_IMAGENET, train_steps=9360, warmup_steps=9) == [
        "2 times the length of the recipe",
        "warmup_steps = 9 as given",
    ]


def test_a_recipe_without_a_warm_up_keeps_none():
    without = dataclasses.replace(TPU.phases[0], schedule=Schedule(peak_value=4.8))
    recipe = dataclasses.replace(TPU, phases=(without,))
    assert changes(recipe, 24_576, NUM_IMAGENET, train_steps=9360) == [
        "2 times the length of the recipe"
    ]


def test_a_peak_below_the_start_lowers_that_too():
    assert changes(imagenette.IMAGENETTE, 64, 9469, peak_learning_rate=0.005) == [
        "peak_learning_rate = 0.005 as given: the learning rate of step 0 is lowered to"
        " it too, since the rate can't fall in a warmup"
    ]


def test_a_start_without_a_warm_up_is_said_to_be_none():
    given = {"base_learning_rate": 0.001, "peak_learning_rate": 0.05, "warmup_steps": 0}
    assert changes(imagenette.IMAGENETTE, 64, 9469, **given)[0] == (
        "base_learning_rate = 0.001 as given; it is not used, since there is no warmup"
    )


def test_a_recipe_of_momentum_keeps_the_form_of_its_momentum_with_lars():
    (change,) = changes(TPU, 24_576, NUM_IMAGENET, optimizer="lars")
    assert change.endswith(
        "; neither is the form of the momentum (LARS's source has momentum without"
        " Nesterov and with the learning rate in the velocity)"
    )


def test_the_peak_follows_a_start_that_is_given():
    recipe = imagenette.IMAGENETTE  # From 0.01 to 0.025.
    assert changes(recipe, 64, 9469, base_learning_rate=0.1) == [
        "base_learning_rate = 0.1 as given: the peak learning rate changes in"
        " proportion,"
        " to 0.25"
    ]
    assert changes(cifar10.CIFAR10, 512, 50_000, base_learning_rate=0.2) == [
        "base_learning_rate = 0.2 as given: the peak learning rate stays"
    ]
