"""The recipe for own images: what follows from their numbers and their sizes."""

import dataclasses
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base.errors import UserError
from resnet.config import explain
from resnet.config.config import Config, Derived
from resnet.config.recipe import Recipe
from resnet.config.recipes import imagenette, own
from resnet.config.resolve import resolve
from resnet.config.rules import check_start
from resnet.report import settings

NAMES = functools.partial(map, "class {}".format)


def run_of(recipe: Recipe, num_classes: int) -> Config:
    names = tuple(NAMES(range(num_classes)))
    return resolve(recipe, {}, recipe.num_train_examples, names)


@pytest.mark.parametrize(
    ("num_images", "side", "batch", "epochs", "model", "sizes"),
    [
        # 10 / 28 is below 8; 20 * sqrt(10,000 / 10) = 632, at most 200.
        (10, 300, 8, 200, "resnet18d", (96, 128, 160, 160)),
        (3, 32, 2, 200, "resnet9", (32, 32)),
        # 900 / 28 = 32.1; 20 * sqrt(11.1) = 66.7.
        (900, 96, 32, 67, "resnet18d", (64, 80, 96, 96)),  # 57.6, 76.8.
        (1437, 32, 32, 53, "resnet9", (32, 32)),  # 51.3; 20 * sqrt(6.96) = 52.8.
        (2000, 63, 64, 45, "resnet9", (64, 64)),  # 71.4; 20 * sqrt(5) = 44.7.
        (9469, 160, 64, 21, "resnet34d", (96, 128, 160, 160)),
        (50_000, 32, 64, 20, "resnet9", (32, 32)),
        (50_000, 17, 64, 20, "resnet9", (32, 32)),
        (50_000, 64, 64, 20, "resnet34d", (32, 48, 64, 64)),  # 38.4, 51.2.
        # Of the multiples of 32, the nearest.
        (50_000, 110, 64, 20, "resnet34d", (64, 80, 96, 96)),
        (50_000, 112, 64, 20, "resnet34d", (80, 96, 128, 128)),
    ],
)
def test_the_settings_follow_from_the_images(
    num_images, side, batch, epochs, model, sizes
):
    recipe = own.recipe_for(num_images, 5, side)
    assert (recipe.name, recipe.num_train_examples) == ("own", num_images)
    assert recipe.num_classes == 5
    assert recipe.global_batch_size == batch
    assert recipe.epochs == pytest.approx(epochs)
    assert recipe.model == model
    assert (*(p.image_size for p in recipe.phases), recipe.image_size) == sizes


def test_rates_are_those_of_the_recipes_it_is_made_of_for_its_batch():
    large, small = own.recipe_for(900, 3, 240), own.recipe_for(900, 3, 32)
    # 0.07 * sqrt(32 / 64), and 0.4 * 32 / 512.
    assert large.phases[0].schedule.peak_value == pytest.approx(0.0494975)
    assert small.phases[0].schedule.peak_value == pytest.approx(0.025)
    # 1 of 20 epochs, and 5 of 24.
    assert large.phases[0].schedule.warmup_length == pytest.approx(67 / 20)
    assert small.phases[0].schedule.warmup_length == pytest.approx(5 * 67 / 24)
    usual = own.recipe_for(10_000, 10, 160)
    best = imagenette.IMAGENETTE_BEST
    assert usual.phases == best.phases
    assert usual.optimizer == best.optimizer


@given(
    num_images=st.integers(2, 2_000_000),
    num_classes=st.integers(1, 1000),
    side=st.integers(1, 5000),
)
def test_any_set_can_be_trained(num_images, num_classes, side):
    recipe = own.recipe_for(num_images, num_classes, side)
    batch = recipe.global_batch_size
    assert 2 <= batch <= min(num_images, 64)
    assert batch.bit_count() == 1
    assert num_images / batch >= min(28, num_images / 8)
    config = run_of(recipe, num_classes)
    check_start(recipe, config, 1)
    assert config.image_size <= max(1.25 * side, 64)
    more = own.recipe_for(4 * num_images, num_classes, side)
    assert more.epochs <= recipe.epochs
    assert more.epochs * more.num_train_examples > recipe.epochs * num_images


def test_explain_has_a_reason_with_the_numbers_of_each_choice():
    recipe = own.recipe_for(900, 30, 240)
    text = explain.describe_run(recipe, {}, Derived(run_of(recipe, 30), 4))
    text = " ".join(text.split())
    for words in (
        "global batch 32 = 4 ranks x 8",
        "160 px at the end of the training: the median of the images' shorter sides is"
        " 240, and the recipe uses at most 160",
        "resnet18d: resnet9 is for less than 64 pixels",
        "batch 32: 900 images / 28 steps per epoch at least",
        "67 epochs: 20 * (10,000 / 900 images)^0.5, within 20 to 200",
        "--augmentation=random_shift",
        "900 images of 30 classes are few",
    ):
        assert words in text
    assert "Changed from the recipe" not in text
    assert "are few" not in " ".join(own.recipe_for(1500, 30, 240).reasons)


def test_it_is_fitted_to_a_set_whose_sizes_are_known():
    assert own.fitted(own.OWN, 900, 3, 240) == own.recipe_for(900, 3, 240)
    other = imagenette.IMAGENETTE
    assert own.fitted(other, 900, 3, 0) is other
    renamed = dataclasses.replace(own.OWN, name="mine")
    assert own.fitted(renamed, 900, 3, 0) is renamed
    with pytest.raises(UserError, match=r"has no median_side\. Convert"):
        own.fitted(own.OWN, 900, 3, 0)


def test_a_report_compares_a_run_with_what_its_recipe_was_for_its_data():
    config = run_of(own.recipe_for(900, 3, 240), 3)
    assert settings._of_recipe(dataclasses.replace(config, median_side=240)) == config
    assert settings._of_recipe(config) is None  # Its sizes aren't known.
