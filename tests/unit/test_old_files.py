"""Files of earlier versions, whose fields had other names."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from resnet.base import dataclass_json
from resnet.base.errors import UserError
from resnet.config import json_file
from resnet.config.config import (
    CONFIG_FILE,
    config_from_json,
    differences,
    load_config,
    refuse_other,
    save_config,
)
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import registry
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule
from tests.unit import small_recipe_file

# Settings that earlier versions wrote.
STORED = Path(__file__).with_name("old_configs")
RUNS = ("imagenette", "imagenette_collapse", "imagenette_lars")

OLD_RECIPE: dict[str, Any] = {
    "name": "old",
    "source": "a test",
    "model": "resnet18",
    "image_size": 64,
    "global_batch_size": 8,
    "num_train_examples": 80,
    "train_epochs": 5.5,
    "batch_norm_decay": 0.9,
    "phases": [
        {
            "name": "first",
            "epochs": 3,
            "rates": {
                "peak": 0.5,
                "start": 0.25,
                "start_scales": False,
                "warmup_epochs": 1,
                "decay": "steps",
                "decays_from_start": True,
                "decay_epochs": 3,
                "power": 2,
                "end": 0.125,
                "drop_epochs": [1, 2.5],
                "drop_factor": 0.5,
            },
            "fresh_momentum": True,
            "smallest_crop": 0.25,
        },
        {"name": "second", "epochs": 2.5, "rates": None},
    ],
}


def resolved_again(name: str):
    """Returns what the recipe of a stored run and the flags of that run give now."""
    old = load_config(str(STORED / name))
    recipe = registry.get(old.recipe)
    overrides = {
        field: getattr(old, field)
        for field in ("precision", "eval_every", "data_dir", "model_dir", "ema_decay")
    }
    return old, resolve(recipe, overrides, old.num_train_examples, old.class_names)


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_read_and_resumed_without_a_difference(name):
    text = (STORED / name / CONFIG_FILE).read_text()
    for old_name in ("curve", "start", "drops", "smallest_crop", "batch_norm_decay"):
        assert f'"{old_name}": ' in text
    old, now = resolved_again(name)
    assert differences(old, now) == []
    refuse_other(old, now)
    assert old.phases == now.phases


def test_another_value_of_a_renamed_setting_is_still_told():
    old, now = resolved_again("imagenette")
    assert differences(old, dataclasses.replace(now, batch_norm_momentum=0.5)) == [
        "batch_norm_momentum=0.95, now 0.5"
    ]


def test_new_files_have_the_new_names_only(tmp_path):
    old = load_config(str(STORED / "imagenette_collapse"))
    save_config(dataclasses.replace(old, model_dir=str(tmp_path)))
    text = (tmp_path / CONFIG_FILE).read_text()
    for old_name in dataclass_json.OLD_NAMES:
        assert f'"{old_name}": ' not in text
    assert config_from_json(json.loads(text)).phases == old.phases


def test_settings_in_a_checkpoint_are_read_like_the_file():
    values = json.loads((STORED / "imagenette_lars" / CONFIG_FILE).read_text())
    assert config_from_json(values) == load_config(str(STORED / "imagenette_lars"))


def test_an_old_recipe_file_is_read(tmp_path):
    assert json_file.read(small_recipe_file.write(tmp_path, OLD_RECIPE)) == Recipe(
        name="old",
        source="a test",
        model="resnet18",
        image_size=64,
        global_batch_size=8,
        num_train_examples=80,
        batch_norm_momentum=0.9,
        phases=(
            RecipePhase(
                epochs=3.0,
                schedule=Schedule(
                    peak_value=0.5,
                    init_value=0.25,
                    init_value_scales=False,
                    warmup_length=1,
                    decay="steps",
                    decay_start=0,
                    decay_end=3,
                    power=2.0,
                    end_value=0.125,
                    boundaries=(1, 2.5),
                    decay_factor=0.5,
                ),
                name="first",
                reset_momentum=True,
                min_crop_area=0.25,
            ),
            RecipePhase(epochs=2.5, name="second"),
        ),
    )


def test_an_old_file_may_change_a_named_recipe(tmp_path):
    contents = {"based_on": "imagenette", "name": "mine", "batch_norm_decay": 0.9}
    found = json_file.read(small_recipe_file.write(tmp_path, contents))
    assert found.batch_norm_momentum == 0.9


def test_a_field_by_its_old_and_its_new_name_is_refused(tmp_path):
    contents = {**OLD_RECIPE, "batch_norm_momentum": 0.9}
    with pytest.raises(UserError) as caught:
        json_file.read(small_recipe_file.write(tmp_path, contents))
    assert "'batch_norm_momentum' of the recipe is there twice" in str(caught.value)


def test_a_wrong_value_of_an_old_field_is_refused(tmp_path):
    phase = {"epochs": 3, "rates": {"peak": 0.5, "decays_from_start": "yes"}}
    contents = {**OLD_RECIPE, "train_epochs": 3, "phases": [phase]}
    with pytest.raises(UserError, match=r"'decays_from_start' of .* must be a bool"):
        json_file.read(small_recipe_file.write(tmp_path, contents))


def test_a_stored_curve_is_read(tmp_path):
    shutil.copytree(STORED / "imagenette", tmp_path / "run")
    assert load_config(str(tmp_path / "run")).train_steps == 2367
