"""Runs that an earlier version began, with recipes whose values have changed since."""

import collections
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from resnet.base.errors import UserError
from resnet.checkpoint.step_dirs import of_step
from resnet.config.augmentations import PARTLY_DECODED_2018_02
from resnet.config.config import CONFIG_FILE, Config, load_config, save_config
from resnet.config.recipes import earlier, registry
from resnet.training import saved_run
from tests.unit import small_recipe_file

# Settings that earlier versions wrote.
STORED = Path(__file__).with_name("old_configs")
# Of each stored run: the settings that its recipe has changed since.
CHANGED = {
    "goyal_90ep_8k": {"learning_rate_in_velocity"},
    "tpu_90ep_24k": {"augmentation", "eval_crop"},
    "lars_40ep_4k": {"eval_crop", "zero_last_gamma"},
    "cifar10": {
        "initialization",
        "decay_batch_norm",
        "channel_mean",
        "channel_stddev",
    },
}
# Stored runs of several phases: the recipe, the number of its earlier version, the
# latest being 1, and settings that have changed since.
REPLACED = {
    "cifar10_94": ("cifar10_94", 1, {"optimizer": "momentum", "lookahead_every": 5}),
    "imagenette_best_20ep": (
        *("imagenette_best", 1),
        {"model": "resnet50d", "optimizer": "lars", "ema_decay": 0.998},
    ),
    "imagenette_best_16ep": (
        *("imagenette_best", 2),
        {"model": "resnet50d", "blur_pool": "none", "image_size": 128},
    ),
}
CIFAR10 = (
    50_000,
    (
        *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog"),
        *("horse", "ship", "truck"),
    ),
)
# The number of training images and the names of the classes, where not ImageNet's.
DATA_SETS = {
    "cifar10": CIFAR10,
    "cifar10_94": CIFAR10,
    "imagenette_best": (9469, ("a", "b")),
}


def possible_configs(recipe: str, model_dir: Path, **overrides) -> list[Config]:
    given = {"model_dir": str(model_dir), **overrides}
    data_set = DATA_SETS.get(recipe, (1_281_167, ("a", "b")))
    return earlier.possible_configs(recipe, given, *data_set)


@pytest.fixture
def begun(tmp_path):
    """A function that puts a run there, as an earlier version left it."""

    def begun(name: str) -> Path:
        model_dir = tmp_path / "run"
        shutil.copytree(STORED / name, model_dir)
        of_step(model_dir, 100).mkdir(parents=True)
        return model_dir

    return begun


def values(config: Config) -> dict[str, object]:
    """Returns the settings of a run of one phase, without its folder."""
    (phase,) = config.phases
    return {**dataclasses.asdict(config), **dataclasses.asdict(phase), "model_dir": ""}


@pytest.mark.parametrize("name", CHANGED)
def test_the_same_command_resumes_a_run_as_it_was_begun(begun, name):
    model_dir = begun(name)
    now, before, *_ = found = possible_configs(name, model_dir)
    number, choices = saved_run.match_saved_run(found)
    assert (found[number], choices) == (before, {"exchange": "auto"})
    old = load_config(str(model_dir))
    assert values(before) == values(old)
    different = {key for key, one in values(now).items() if one != values(old)[key]}
    assert different - {"phases"} == CHANGED[name]


@pytest.mark.parametrize(("stored", "of"), REPLACED.items())
def test_a_run_of_a_recipe_that_was_replaced_resumes(begun, stored, of):
    name, version, changed = of
    model_dir = begun(stored)
    found = possible_configs(name, model_dir)
    (number, choices) = saved_run.match_saved_run(found)
    assert (number, choices) == (version, {"exchange": "auto"})
    old = load_config(str(model_dir))
    assert found[number] == dataclasses.replace(old, model_dir=str(model_dir))
    for setting, value in changed.items():
        assert getattr(old, setting) == value != getattr(found[0], setting)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cifar10_94", {"sync_every": 8}),  # Lookahead excludes it.
        ("imagenette_best", {"first_phase": "160_px", "initial_weights": "RUN"}),
    ],
)
def test_a_command_need_not_fit_the_recipe_as_it_was(tmp_path, name, given):
    config, *before = possible_configs(name, tmp_path, **given)
    assert len(before) < sum(recipe.name == name for recipe in earlier.RECIPES)
    assert config.phases[0].schedule is not None
    assert config.recipe == name


def test_crops_that_had_the_name_of_others_stay_what_they_were(begun):
    given = {
        "augmentation": "random_resized_crop_2018_02",
        "eval_crop": "resize_then_crop",
    }
    found = possible_configs("tpu_90ep_8k", begun("tpu_90ep_8k"), **given)
    (number, _) = saved_run.match_saved_run(found)
    assert found[0].phases[0].augmentation == "random_resized_crop_2018_02"
    assert found[number].phases[0].augmentation == PARTLY_DECODED_2018_02
    assert load_config(found[0].model_dir).phases == found[number].phases
    save_config(found[number])
    assert load_config(found[0].model_dir) == found[number]
    save_config(found[0])
    assert load_config(found[0].model_dir) == found[0]


def test_the_run_says_that_it_keeps_the_settings_that_it_was_begun_with(begun, caplog):
    caplog.set_level("INFO")
    saved_run.match_saved_run(possible_configs("goyal_90ep_8k", begun("goyal_90ep_8k")))
    assert (
        "goyal_90ep_8k has changed since this run was begun"
        " (learning_rate_in_velocity=True, now False); the run keeps the settings that"
        " it was begun with."
    ) in caplog.text


def test_another_setting_is_still_refused_and_named_alone(begun):
    found = possible_configs("goyal_90ep_8k", begun("goyal_90ep_8k"), momentum=0.8)
    with pytest.raises(UserError) as caught:
        saved_run.match_saved_run(found)
    assert "(momentum=0.9, now 0.8)" in str(caught.value)


def test_a_new_run_has_the_settings_of_today(tmp_path):
    found = possible_configs("goyal_90ep_8k", tmp_path)
    assert saved_run.match_saved_run(found) == (0, {})
    assert not found[0].learning_rate_in_velocity


def test_a_run_of_today_stays_one(tmp_path):
    found = possible_configs("goyal_90ep_8k", tmp_path)
    save_config(found[0])
    of_step(tmp_path, 100).mkdir(parents=True)
    assert saved_run.match_saved_run(found) == (0, {"exchange": "auto"})


def test_a_file_based_on_such_a_recipe_resumes_too(begun, tmp_path):
    model_dir = begun("goyal_90ep_8k")
    text = (model_dir / CONFIG_FILE).read_text()
    text = text.replace('"recipe": "goyal_90ep_8k"', '"recipe": "mine"')
    (model_dir / CONFIG_FILE).write_text(text)
    contents = {"based_on": "goyal_90ep_8k", "name": "mine"}
    file = small_recipe_file.write(tmp_path, contents)
    found = possible_configs(str(file), model_dir)
    assert saved_run.match_saved_run(found) == (1, {"exchange": "auto"})
    assert found[1].learning_rate_in_velocity


def test_recipes_that_have_not_changed_have_one_meaning(tmp_path):
    numbers = collections.Counter(recipe.name for recipe in earlier.RECIPES)
    for name, recipe in registry.RECIPES.items():
        if recipe.phases[0].augmentation != "random_resized_crop_2018_02":
            assert len(possible_configs(name, tmp_path)) == 1 + numbers[name]


def test_the_stored_settings_have_the_old_names():
    for name in set(CHANGED) - {"cifar10"}:
        stored = json.loads((STORED / name / CONFIG_FILE).read_text())
        assert "momentum_correction" in stored
    stored = json.loads((STORED / "cifar10" / CONFIG_FILE).read_text())
    assert not CHANGED["cifar10"] & set(stored)
