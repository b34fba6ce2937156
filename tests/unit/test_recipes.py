import dataclasses

import pytest

from data_prep.errors import UserError
from resnet import config, recipes


def test_the_24k_recipe_has_the_published_numbers():
    recipe = recipes.get("tpu_90ep_24k")
    numbers = dataclasses.asdict(recipe)
    del numbers["source"]
    assert numbers == {
        "name": "tpu_90ep_24k",
        "model": "resnet50",
        "image_size": 224,
        "global_batch_size": 24_576,
        "train_epochs": 90,
        "warmup_epochs": 5,
        "base_learning_rate": 0.1,
        "peak_share": 0.5,
        "momentum": 0.9,
        "weight_decay": 5e-5,
        "batch_norm_decay": 0.95,
        "label_smoothing": 0.0,
        "augmentation": "random_resized_crop",
        "eval_crop_fraction": 0.875,
        "eval_crop": "crop_then_resize",
        "published_train_steps": 4680,
        "num_train_examples": 1_281_167,
    }


def test_each_recipe_is_found_by_its_name():
    for name, recipe in recipes.RECIPES.items():
        assert recipe.name == name
        assert recipes.get(name) is recipe
        assert recipe.source


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="digits, imagenette, tpu_90ep_24k; got 'x'"):
        recipes.get("x")


@pytest.mark.parametrize("name", sorted(recipes.RECIPES))
def test_each_recipe_resolves_without_flags(name):
    recipe = recipes.get(name)
    resolved = config.resolve(
        recipe,
        {
            "precision": "float32",
            "seed": 0,
            "data_dir": "d",
            "model_dir": "m",
            "mode": "train",
            "eval_batch_size": 8,
            "steps_per_eval": 0,
            "log_step_count_steps": 10,
            "checkpoint_every": "1 epoch",
            "keep_checkpoints": 5,
            "num_parallel_calls": 0,
        },
        num_train_examples=50_000,
        class_names=("a", "b"),
    )
    assert resolved.recipe == name
    assert resolved.model == recipe.model
    assert resolved.train_steps > resolved.warmup_steps
