import functools
import pathlib
from collections.abc import Callable

import pytest

from resnet.base.errors import UserError
from resnet.config import json_file
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import digits, imagenette
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule
from tests.unit import small_recipe_file
from tests.unit.small_recipe_file import SMALL

WHOLE = {
    "name": "whole",
    "source": "a test",
    "model": "resnet18",
    "image_size": 64,
    "global_batch_size": 8,
    "num_train_examples": 80,
    "train_epochs": 5.5,
    "phases": [
        {
            "name": "first",
            "epochs": 3,
            "schedule": {
                "peak_value": 0.5,
                "init_value": 0.25,
                "init_value_scales": False,
                "warmup_length": 1,
                "decay": "steps",
                "decay_start": 0,
                "decay_end": 3,
                "power": 2,
                "end_value": 0.125,
                "boundaries": [1, 2.5],
                "decay_factor": 0.5,
            },
            "reset_momentum": True,
            "momentum": 0.8,
            "weight_decay": 1e-3,
            "label_smoothing": 0.1,
            "image_size": 32,
            "augmentation": "random_crop",
            "min_crop_area": 0.25,
            "random_augment": 9,
            "mixup": 0.2,
            "cutmix": 1,
        },
        {"name": "second", "epochs": 2.5, "schedule": None, "image_size": None},
    ],
    "batch_norm_momentum": 0.9,
    "eval_crop_fraction": 1,
    "eval_crop": "resize_then_crop",
    "optimizer": "lars",
    "nesterov": False,
    "learning_rate_in_velocity": True,
    "trust_coefficient": 0.01,
    "zero_last_gamma": False,
    "clip_norm": 1,
    "ema_decay": 0.999,
    "scaling": "none",
    "published": "nothing",
    "deviations": ["one", "two"],
}


@pytest.fixture
def write(tmp_path) -> Callable[[object], pathlib.Path]:
    """A function that writes a file."""
    return functools.partial(small_recipe_file.write, tmp_path)


def test_every_field_can_be_written(write):
    assert json_file.read(write(WHOLE)) == Recipe(
        name="whole",
        source="a test",
        model="resnet18",
        image_size=64,
        global_batch_size=8,
        num_train_examples=80,
        phases=(
            RecipePhase(
                epochs=3.0,
                schedule=Schedule(
                    peak_value=0.5,
                    init_value=0.25,
                    init_value_scales=False,
                    warmup_length=1.0,
                    decay="steps",
                    decay_start=0,
                    decay_end=3.0,
                    power=2.0,
                    end_value=0.125,
                    boundaries=(1.0, 2.5),
                    decay_factor=0.5,
                ),
                name="first",
                reset_momentum=True,
                momentum=0.8,
                weight_decay=1e-3,
                label_smoothing=0.1,
                image_size=32,
                augmentation="random_crop",
                min_crop_area=0.25,
                random_augment=9.0,
                mixup=0.2,
                cutmix=1.0,
            ),
            RecipePhase(epochs=2.5, name="second"),
        ),
        batch_norm_momentum=0.9,
        eval_crop_fraction=1.0,
        eval_crop="resize_then_crop",
        optimizer="lars",
        nesterov=False,
        learning_rate_in_velocity=True,
        trust_coefficient=0.01,
        zero_last_gamma=False,
        clip_norm=1.0,
        ema_decay=0.999,
        scaling="none",
        published="nothing",
        deviations=("one", "two"),
    )


def test_what_is_not_written_is_as_recipes_are(write):
    expected = Recipe(
        name="small",
        source="a test",
        model="resnet18",
        image_size=32,
        global_batch_size=4,
        num_train_examples=40,
        phases=(RecipePhase(epochs=3.0, schedule=Schedule(peak_value=0.5)),),
    )
    assert json_file.read(write(SMALL)) == expected


def test_a_recipe_in_a_file_resolves(write):
    config = resolve(json_file.read(write(WHOLE)), {}, 80, ("a", "b"))
    assert config.recipe == "whole"
    assert [phase.num_steps for phase in config.phases] == [30, 25]
    first, second = config.phases
    assert first.schedule.boundaries == (10, 25)
    assert second.schedule is None
    assert (first.image_size, second.image_size) == (32, 64)


def test_a_name_with_json_is_a_file_and_any_other_a_recipe(write):
    assert json_file.get(str(write(SMALL))).name == "small"
    assert json_file.get("digits") is digits.DIGITS
    with pytest.raises(UserError, match=r"or a recipe file, \*.json; got 'mine'"):
        json_file.get("mine")


def test_a_file_may_change_a_named_recipe(write):
    found = json_file.read(
        write({"based_on": "imagenette", "name": "mine", "ema_decay": 0.99})
    )
    expected = {
        **vars(imagenette.IMAGENETTE),
        "name": "mine",
        "ema_decay": 0.99,
        # What is said of the source is said of its own numbers.
        "source": "imagenette, changed",
        "published": "",
        "deviations": (),
    }
    assert vars(found) == expected


def test_a_changed_recipe_has_the_phases_of_the_file_only(write):
    phase = {"epochs": 2, "schedule": {"peak_value": 0.25}}
    contents = {"based_on": "imagenette", "name": "mine", "phases": [phase]}
    found = json_file.read(write(contents))
    assert found.phases == (
        RecipePhase(epochs=2.0, schedule=Schedule(peak_value=0.25)),
    )  # No label smoothing.
    assert found.image_size == 128


def test_a_changed_recipe_may_have_a_source_of_its_own(write):
    contents = {"based_on": "digits", "name": "mine", "source": "the office"}
    assert json_file.read(write(contents)).source == "the office"
